//! A target group ARN, read with an answer for what people paste instead.

use super::problem::Refusal;

const FORM: &str = "a target group ARN, arn:aws:elasticloadbalancing:REGION:ACCOUNT:targetgroup/NAME/ID";
const WHERE: &str = "copy it from `aws elbv2 describe-target-groups --query 'TargetGroups[].TargetGroupArn'`";

/// The parts of a target group ARN that decide where calls go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Arn {
    pub(super) partition: String,
    pub(super) region: String,
    pub(super) account: String,
    /// The last part; 16 hexadecimal digits on AWS, anything on an emulator.
    pub(super) id: String,
}

impl Arn {
    /// As AWS writes its ids; emulators do not.
    pub(super) fn id_as_on_aws(&self) -> bool {
        self.id.len() == 16 && self.id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    }
}

/// Reads a target group ARN.
pub(super) fn parse(text: &str) -> Result<Arn, Refusal> {
    if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return refuse("one without spaces or line breaks", "take the whitespace out of the ARN");
    }
    if text.is_empty() {
        return refuse("", WHERE);
    }
    let parts: Vec<&str> = text.splitn(6, ':').collect();
    let ["arn", partition, service, region, account, resource] = parts.as_slice() else {
        return refuse(&format!("six parts between colons, this has {}", parts.len()), WHERE);
    };
    if *service != "elasticloadbalancing" {
        return refuse(&format!("service elasticloadbalancing, this is of service {service:?}"), WHERE);
    }
    partition_of(partition, region)?;
    if account.len() != 12 || !account.bytes().all(|b| b.is_ascii_digit()) {
        return refuse("an account of 12 digits as its fifth part", WHERE);
    }
    let id = resource_id(resource)?;
    Ok(Arn {
        partition: (*partition).to_owned(),
        region: (*region).to_owned(),
        account: (*account).to_owned(),
        id: id.to_owned(),
    })
}

fn refuse<T>(detail: &str, next: &str) -> Result<T, Refusal> {
    let colon = if detail.is_empty() { "" } else { ": " };
    Err(Refusal::new(format!("{FORM}{colon}{detail}"), next))
}

fn partition_of(partition: &str, region: &str) -> Result<(), Refusal> {
    if !region_like(region) {
        return refuse("a region such as eu-west-1 as its fourth part", WHERE);
    }
    let owner = if region.starts_with("cn-") {
        "aws-cn"
    } else if region.starts_with("us-gov-") {
        "aws-us-gov"
    } else {
        "aws"
    };
    if partition == owner {
        return Ok(());
    }
    refuse(&format!("partition {owner} for region {region}, this says {partition:?}"), WHERE)
}

/// `ap-southeast-2`: letters, words, a number.
fn region_like(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let Some((number, words)) = parts.split_last() else {
        return false;
    };
    words.len() >= 2
        && words.iter().all(|w| !w.is_empty() && w.bytes().all(|b| b.is_ascii_lowercase()))
        && matches!(number.len(), 1 | 2)
        && number.bytes().all(|b| b.is_ascii_digit())
}

fn resource_id(resource: &str) -> Result<&str, Refusal> {
    let mut parts = resource.split('/');
    let kind = parts.next().unwrap_or_default();
    let (name, id) = (parts.next().unwrap_or_default(), parts.next());
    match kind {
        "targetgroup" => {}
        "loadbalancer" => {
            return refuse("this is the ARN of a load balancer", "use the ARN of the target group behind it");
        }
        "listener" | "listener-rule" => {
            return refuse("this is the ARN of a listener", "use the ARN of the target group that it forwards to");
        }
        _ => return refuse(&format!("this is of type {kind:?}"), WHERE),
    }
    let named = (1..=32).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    if !named || name.starts_with('-') || name.ends_with('-') {
        return refuse("a NAME of up to 32 letters, digits and inner hyphens after targetgroup/", WHERE);
    }
    match id {
        Some(id) if !id.is_empty() && parts.next().is_none() && id.bytes().all(|b| b.is_ascii_alphanumeric()) => Ok(id),
        Some("") | None => refuse("the ID after the name is missing", WHERE),
        Some(_) => refuse("nothing but letters and digits after the name", WHERE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str =
        "arn:aws:elasticloadbalancing:ap-southeast-2:123456789012:targetgroup/es-clients/0123456789abcdef";

    #[test]
    fn a_target_group_arn_gives_its_parts() {
        let arn = parse(GOOD).expect("good");
        assert_eq!((arn.partition.as_str(), arn.region.as_str()), ("aws", "ap-southeast-2"));
        assert!(arn.id_as_on_aws());
        for other in [
            "arn:aws-cn:elasticloadbalancing:cn-north-1:123456789012:targetgroup/a/0123456789abcdef",
            "arn:aws-us-gov:elasticloadbalancing:us-gov-west-1:123456789012:targetgroup/a/0123456789abcdef",
        ] {
            assert!(parse(other).is_ok(), "{other}");
        }
    }

    #[test]
    fn what_people_paste_instead_is_named() {
        let swap = |from: &str, to: &str| GOOD.replace(from, to);
        for (text, says) in [
            (swap("targetgroup/es-clients", "loadbalancer/app/es"), "ARN of a load balancer"),
            (swap("targetgroup/es-clients", "listener/app/es/0/1"), "ARN of a listener"),
            (format!("{GOOD}\n"), "without spaces"),
            (format!(" {GOOD}"), "without spaces"),
            (swap("/0123456789abcdef", ""), "ID after the name is missing"),
            (swap("/0123456789abcdef", "/"), "ID after the name is missing"),
            (swap("0123456789abcdef", "01/23"), "nothing but letters"),
            (swap("es-clients", "-es"), "a NAME"),
            (swap("elasticloadbalancing", "ec2"), "service \"ec2\""),
            (swap("123456789012", "1234"), "12 digits"),
            (swap("ap-southeast-2", ""), "a region"),
            (swap("ap-southeast-2", "cn-north-1"), "partition aws-cn"),
            ("es-clients".to_owned(), "six parts"),
            (String::new(), "a target group ARN"),
        ] {
            let refusal = parse(&text).expect_err(&text);
            assert!(refusal.expected.contains(says), "{text:?}: {}", refusal.expected);
        }
        assert!(!parse(&swap("0123456789abcdef", "0123456789abcde")).expect("parses").id_as_on_aws());
    }
}
