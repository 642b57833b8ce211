//! Starts a foreign server, makes a target group in it, and ends it.

use aws_sdk_elasticloadbalancingv2::Client;
use aws_sdk_elasticloadbalancingv2::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_elasticloadbalancingv2::types::{ProtocolEnum, TargetDescription, TargetTypeEnum};
use backstop::rehearse::pace;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Moto,
    Ministack,
}

pub(crate) struct Server {
    kind: Kind,
    port: u16,
    child: Child,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn credentials() -> Credentials {
    Credentials::new("peer", "peer", None, None, "test")
}

impl Server {
    /// On a free loopback port. Panics where it does not come up in a minute.
    pub(crate) async fn start(kind: Kind) -> Server {
        let bin =
            PathBuf::from(std::env::var_os("BACKSTOP_PEERS").expect("BACKSTOP_PEERS names the servers' directory"));
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let mut command = match kind {
            Kind::Moto => {
                let mut c = Command::new(bin.join("moto_server"));
                c.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
                c
            }
            Kind::Ministack => {
                let mut c = Command::new(bin.join("ministack"));
                c.env("BIND_HOST", "127.0.0.1")
                    .env("GATEWAY_PORT", port.to_string())
                    .env("MINISTACK_IMDS_V2_REQUIRED", "1");
                c
            }
        };
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let server = Server { kind, port, child };
        let up = pace::until(Duration::from_secs(60), || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()).await;
        assert!(up, "{kind:?} did not come up");
        server
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn client(&self) -> Client {
        let config = aws_sdk_elasticloadbalancingv2::Config::builder()
            .behavior_version(BehaviorVersion::v2026_01_12())
            .region(Region::new("eu-west-1"))
            .credentials_provider(credentials())
            .endpoint_url(self.url())
            .http_client(aws_smithy_http_client::Builder::new().build_http())
            .build();
        Client::from_conf(config)
    }

    /// A group of addresses with these targets.
    pub(crate) async fn group(&self, ids: &[String]) -> String {
        let client = self.client();
        let vpc = match self.kind {
            Kind::Moto => self.vpc().await,
            Kind::Ministack => "vpc-00000000".to_owned(),
        };
        let made = client
            .create_target_group()
            .name("es-clients")
            .protocol(ProtocolEnum::Http)
            .port(9200)
            .vpc_id(vpc)
            .target_type(TargetTypeEnum::Ip)
            .send()
            .await
            .unwrap();
        let arn = made.target_groups()[0].target_group_arn().unwrap().to_owned();
        for id in ids {
            let target = TargetDescription::builder().id(id).port(9200).build();
            client.register_targets().target_group_arn(&arn).targets(target).send().await.unwrap();
        }
        arn
    }

    /// How many targets the group lists.
    pub(crate) async fn registered(&self, arn: &str) -> usize {
        let health = self.client().describe_target_health().target_group_arn(arn).send().await.unwrap();
        health.target_health_descriptions().len()
    }

    /// moto wants a VPC that it knows. There is no EC2 SDK here, and its query API does not check signatures.
    async fn vpc(&self) -> String {
        let body = "Action=CreateVpc&Version=2016-11-15&CidrBlock=127.0.0.0%2F16";
        let scope =
            "AWS4-HMAC-SHA256 Credential=peer/20260101/eu-west-1/ec2/aws4_request, SignedHeaders=host, Signature=0";
        let url = reqwest::Url::parse(&self.url()).unwrap();
        let client =
            backstop::http_client::builder(&url, std::time::Duration::from_secs(30)).no_proxy().build().unwrap();
        let answer = client
            .post(url)
            .header("authorization", scope)
            .header("content-type", "application/x-www-form-urlencoded")
            .body(body)
            .send()
            .await
            .unwrap()
            .text()
            .await
            .unwrap();
        let (_, rest) = answer.split_once("<vpcId>").unwrap_or_else(|| panic!("no vpcId in {answer}"));
        rest.split('<').next().unwrap().to_owned()
    }
}
