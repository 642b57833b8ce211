//! The awsQuery protocol: form bodies in, XML out.

use super::state::{Group, RowSpec, TargetKind};
use crate::rehearse::http::Response;
use std::collections::BTreeMap;

/// Namespace of the answers, API version 2015-12-01.
pub(super) const NAMESPACE: &str = "http://elasticloadbalancing.amazonaws.com/doc/2015-12-01/";
/// The load balancer that every group of this world is attached to.
const BALANCER: &str = "rehearsal/0123456789abcdef";

/// A form body.
#[derive(Debug, Default)]
pub(super) struct Form(Vec<(String, String)>);

impl Form {
    pub(super) fn parse(body: &[u8]) -> Form {
        let text = String::from_utf8_lossy(body);
        let pairs = text.split('&').filter(|p| !p.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name), decode(value))
        });
        Form(pairs.collect())
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// `NAME.member.N` in order of N.
    pub(super) fn strings(&self, name: &str) -> Vec<String> {
        self.members(name).into_values().filter_map(|mut fields| fields.remove("")).collect()
    }

    /// `NAME.member.N.FIELD`: the fields of each N; the field is empty for plain values.
    pub(super) fn members(&self, name: &str) -> BTreeMap<u32, BTreeMap<String, String>> {
        let prefix = format!("{name}.member.");
        let mut members: BTreeMap<u32, BTreeMap<String, String>> = BTreeMap::new();
        for (key, value) in &self.0 {
            let Some(rest) = key.strip_prefix(&prefix) else { continue };
            let (number, field) = rest.split_once('.').unwrap_or((rest, ""));
            if let Ok(number) = number.parse() {
                members.entry(number).or_default().insert(field.to_owned(), value.clone());
            }
        }
        members
    }
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'+' => bytes.push(b' '),
            b'%' => {
                let digits: Vec<u8> = rest.by_ref().take(2).collect();
                let hex = std::str::from_utf8(&digits).ok().and_then(|d| u8::from_str_radix(d, 16).ok());
                bytes.push(hex.unwrap_or(b'?'));
            }
            other => bytes.push(other),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Text inside XML.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

fn element(name: &str, value: &str) -> String {
    format!("<{name}>{}</{name}>", escape(value))
}

/// A whole answer around a result.
pub(super) fn result(action: &str, inner: &str, request_id: &str) -> Response {
    let body = format!(
        "<{action}Response xmlns=\"{NAMESPACE}\"><{action}Result>{inner}</{action}Result>\
         <ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata></{action}Response>"
    );
    Response::new(200, "text/xml", body).with("x-amzn-requestid", request_id)
}

pub(super) fn health_rows(rows: &[RowSpec], health_port: &str) -> String {
    let rows: String = rows.iter().map(|row| health_row(row, health_port)).collect();
    format!("<TargetHealthDescriptions>{rows}</TargetHealthDescriptions>")
}

fn health_row(row: &RowSpec, health_port: &str) -> String {
    let port = row.port.map(|p| element("Port", &p.to_string())).unwrap_or_default();
    let reason = row.reason.as_deref().map(|r| element("Reason", r)).unwrap_or_default();
    let description = row.description.as_deref().map(|d| element("Description", d)).unwrap_or_default();
    let shift = if row.shifted {
        "<AdministrativeOverride><State>zonal_shift_active</State>\
         <Reason>AdministrativeOverride.ZonalShiftActive</Reason>\
         <Description>Zonal shift is active</Description></AdministrativeOverride>"
    } else {
        "<AdministrativeOverride><State>no_override</State><Reason>AdministrativeOverride.NoOverride</Reason>\
         <Description>No override is currently active on target</Description></AdministrativeOverride>"
    };
    let checked = match (health_port, row.port) {
        ("traffic-port", Some(port)) => element("HealthCheckPort", &port.to_string()),
        ("traffic-port", None) => String::new(),
        (port, _) => element("HealthCheckPort", port),
    };
    format!(
        "<member><Target>{}{port}</Target>{checked}<TargetHealth>{}{reason}{description}</TargetHealth>{shift}</member>",
        element("Id", &row.id),
        element("State", &row.state),
    )
}

pub(super) fn group(arn: &str, group: &Group) -> String {
    let spec = &group.spec;
    let health = &spec.health;
    let kind = match spec.target_kind {
        TargetKind::Instance => "instance",
        TargetKind::Ip => "ip",
    };
    let family = if spec.protocol.starts_with("HTTP") { "app" } else { "net" };
    let port = health.port.map_or_else(|| "traffic-port".to_owned(), |p| p.to_string());
    let mut fields = vec![
        element("TargetGroupArn", arn),
        element("TargetGroupName", &spec.name),
        element("Protocol", &spec.protocol),
        element("Port", &spec.port.to_string()),
        element("VpcId", "vpc-0123456789abcdef0"),
        element("TargetType", kind),
        element("IpAddressType", "ipv4"),
        element("HealthCheckEnabled", if health.enabled { "true" } else { "false" }),
        element("HealthCheckProtocol", &health.protocol),
        element("HealthCheckPort", &port),
        element("HealthCheckIntervalSeconds", &health.interval_s.to_string()),
        element("HealthCheckTimeoutSeconds", &health.timeout_s.to_string()),
        element("HealthyThresholdCount", &health.healthy_threshold.to_string()),
        element("UnhealthyThresholdCount", &health.unhealthy_threshold.to_string()),
    ];
    if health.protocol.starts_with("HTTP") {
        fields.push(element("HealthCheckPath", &health.path));
        fields.push(format!("<Matcher>{}</Matcher>", element("HttpCode", &health.matcher)));
    }
    if family == "app" {
        fields.push(element("ProtocolVersion", "HTTP1"));
    }
    let balancer = format!("arn:aws:elasticloadbalancing:eu-west-1:123456789012:loadbalancer/{family}/{BALANCER}");
    let balancers = if spec.in_use { element("member", &balancer) } else { String::new() };
    fields.push(format!("<LoadBalancerArns>{balancers}</LoadBalancerArns>"));
    format!("<member>{}</member>", fields.concat())
}

pub(super) fn attributes(group: &Group) -> String {
    let mut all: BTreeMap<String, String> = BTreeMap::new();
    let defaults = if group.spec.protocol.starts_with("HTTP") {
        [
            ("stickiness.enabled", "false"),
            ("slow_start.duration_seconds", "0"),
            ("load_balancing.algorithm.type", "round_robin"),
        ]
    } else {
        [
            ("stickiness.enabled", "false"),
            ("preserve_client_ip.enabled", "true"),
            ("deregistration_delay.connection_termination.enabled", "false"),
        ]
    };
    all.extend(defaults.map(|(k, v)| (k.to_owned(), v.to_owned())));
    let delay = group.spec.deregistration_delay_s.to_string();
    all.insert("deregistration_delay.timeout_seconds".to_owned(), delay);
    all.extend(group.spec.attributes.clone());
    let members: Vec<String> =
        all.iter().map(|(k, v)| format!("<member>{}{}</member>", element("Key", k), element("Value", v))).collect();
    format!("<Attributes>{}</Attributes>", members.concat())
}
