//! One pure function from what is known about a failed `ELBv2` call to its class.
//!
//! It looks at: was there an HTTP status, which error code, which `io::ErrorKind`s. Never at the SDK's error types,
//! which changed their meaning between releases (missing credentials were a "construction failure" once, and are a
//! "dispatch failure" now). What it does not know is `transport`; on a write, `outcome-unknown`.

use crate::causes::{Causes, tidy};
use crate::core::error::{Class, Fault};

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Any Describe call.
    Read,
    /// `RegisterTargets`.
    Register,
    /// `DeregisterTargets`.
    Deregister,
}

impl Operation {
    const fn is_write(self) -> bool {
        matches!(self, Operation::Register | Operation::Deregister)
    }
}

/// What is known about a call that did not succeed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The HTTP status, if a response began.
    pub status: Option<u16>,
    /// The wire's error code, if the body had one.
    pub code: Option<String>,
    /// The server's text beside the code.
    pub text: Option<String>,
    /// `Retry-After`, in milliseconds.
    pub retry_after_ms: Option<u64>,
    /// The error's source chain.
    pub(crate) causes: Causes,
}

/// How a failed call is classed.
pub fn classify(operation: Operation, facts: &Facts) -> Class {
    match (facts.status, facts.code.as_deref()) {
        (Some(status), Some(code)) if status >= 300 => by_code(operation, status, code, facts),
        (Some(status), _) => by_status(operation, status),
        (None, _) => without_answer(operation, &facts.causes),
    }
}

/// A complete answer with an error code: AWS has decided, except where it broke in the middle (5xx).
fn by_code(operation: Operation, status: u16, code: &str, facts: &Facts) -> Class {
    let broke = if operation.is_write() { Class::OutcomeUnknown } else { Class::NotReady };
    match code.strip_suffix("Exception").unwrap_or(code) {
        "Throttling"
        | "Throttled"
        | "RequestThrottled"
        | "TooManyRequests"
        | "RequestLimitExceeded"
        | "BandwidthLimitExceeded"
        | "LimitExceeded"
        | "SlowDown"
        | "PriorRequestNotComplete"
        | "EC2Throttled"
        | "ProvisionedThroughputExceeded"
        | "TransactionInProgress" => Class::Throttled,
        "ExpiredToken"
        | "RequestExpired"
        | "SignatureDoesNotMatch"
        | "InvalidSignature"
        | "IncompleteSignature"
        | "InvalidClientTokenId"
        | "UnrecognizedClient"
        | "MissingAuthenticationToken"
        | "AuthFailure"
        | "InvalidAccessKeyId"
        | "InvalidToken"
        | "TokenRefreshRequired"
        | "RequestTimeTooSkewed"
        | "InvalidSecurity"
        | "MissingSecurityHeader" => Class::Auth,
        "InvalidTarget" => invalid_target(operation, facts.text.as_deref().unwrap_or_default()),
        // On a deregister the target, or its group, may be gone already: that is a question, not a failure.
        "ValidationError" | "Validation" if operation == Operation::Deregister => Class::OutcomeUnknown,
        "AccessDenied"
        | "UnauthorizedOperation"
        | "NotAuthorized"
        | "TargetGroupNotFound"
        | "TooManyTargets"
        | "TooManyRegistrationsForTargetId"
        | "ValidationError"
        | "Validation"
        | "InvalidParameterValue"
        | "InvalidParameterCombination"
        | "MissingParameter"
        | "MissingAction"
        | "InvalidAction"
        | "InvalidQueryParameter"
        | "MalformedQueryString"
        | "OptInRequired"
        | "OperationNotPermitted"
        | "InvalidConfigurationRequest"
        | "UnsupportedOperation" => Class::Refused,
        "HealthUnavailable"
        | "ServiceUnavailable"
        | "InternalFailure"
        | "InternalError"
        | "InternalServerError"
        | "Unavailable" => broke,
        _ if status >= 500 => by_status(operation, status),
        // A code that nobody knows, in a complete 4xx: not applied, and nobody knows why.
        _ => Class::Transport,
    }
}

/// `InvalidTarget` has two meanings: "not yet running", which waiting heals, and "not acceptable", which it does not.
/// On a deregister it may mean "gone already", so only a read tells.
fn invalid_target(operation: Operation, text: &str) -> Class {
    match operation {
        Operation::Deregister => Class::OutcomeUnknown,
        Operation::Register | Operation::Read if says_not_running(text) => Class::NotReady,
        Operation::Register | Operation::Read => Class::Refused,
    }
}

fn says_not_running(text: &str) -> bool {
    text.to_ascii_lowercase().contains("not in a running state")
}

/// A response began, and had no error code that could be read: a proxy's page, junk, a truncated body.
fn by_status(operation: Operation, status: u16) -> Class {
    match status {
        429 => Class::Throttled,
        401 | 403 | 407 => Class::Auth,
        // Junk in a 200, a page of somebody else, a cut body: a write may have been applied.
        _ if operation.is_write() => Class::OutcomeUnknown,
        502..=504 => Class::NotReady,
        _ => Class::Transport,
    }
}

/// No response at all. The SDK reports missing credentials here too, as one more connector error.
fn without_answer(operation: Operation, causes: &Causes) -> Class {
    if is_about_credentials(causes) {
        return Class::Auth;
    }
    if operation.is_write() && !causes.refused() { Class::OutcomeUnknown } else { Class::Transport }
}

/// Credentials are loaded before a request is signed and sent, so that nothing was sent. The chain's texts are the only
/// fact there is; if a new SDK words them differently, the class falls back to the default, which is retried as well.
fn is_about_credentials(causes: &Causes) -> bool {
    ["credential", "access token provider", "loading identity", "load identity"].iter().any(|w| causes.mentions(w))
}

/// The fault for people and for the core.
pub fn fault(operation: Operation, what: &str, facts: &Facts) -> Fault {
    let class = classify(operation, facts);
    let message = match (facts.status, &facts.code) {
        (Some(status), Some(code)) => match facts.text.as_deref().map(tidy).filter(|t| !t.is_empty()) {
            Some(text) => format!("{what}: HTTP {status} {}: {text}", tidy(code)),
            None => format!("{what}: HTTP {status} {}", tidy(code)),
        },
        (Some(status), None) => {
            format!("{what}: HTTP {status} without an answer that can be read: {}", facts.causes.innermost())
        }
        (None, _) if class == Class::Auth => {
            format!("{what}: no credentials: {}", facts.causes.innermost())
        }
        (None, _) => format!("{what}: no answer: {}", facts.causes.innermost()),
    };
    Fault { class, message, retry_after_ms: facts.retry_after_ms }
}

#[cfg(test)]
mod tests {
    use super::Operation::{Deregister, Read, Register};
    use super::*;
    use std::io;

    const NOT_RUNNING: &str = "The following targets are not in a running state and cannot be registered: 'i-0abc'";

    fn answered(status: u16, code: &str, text: &str) -> Facts {
        Facts { status: Some(status), code: Some(code.into()), text: Some(text.into()), ..Facts::default() }
    }

    fn unreadable(status: u16) -> Facts {
        Facts { status: Some(status), ..Facts::default() }
    }

    fn unanswered(error: &io::Error) -> Facts {
        Facts { causes: Causes::of(error), ..Facts::default() }
    }

    #[test]
    fn error_codes_decide_not_the_status() {
        let table = [
            (400, "Throttling", Class::Throttled),
            (400, "ThrottlingException", Class::Throttled),
            (400, "RequestLimitExceeded", Class::Throttled),
            (503, "RequestLimitExceeded", Class::Throttled),
            (403, "ExpiredToken", Class::Auth),
            (403, "ExpiredTokenException", Class::Auth),
            (403, "SignatureDoesNotMatch", Class::Auth),
            (400, "RequestExpired", Class::Auth),
            (403, "InvalidClientTokenId", Class::Auth),
            (403, "AccessDenied", Class::Refused),
            (403, "AccessDeniedException", Class::Refused),
            (400, "TargetGroupNotFound", Class::Refused),
            (400, "TooManyTargets", Class::Refused),
            (400, "TooManyRegistrationsForTargetId", Class::Refused),
        ];
        for (status, code, want) in table {
            for operation in [Read, Register, Deregister] {
                assert_eq!(classify(operation, &answered(status, code, "")), want, "{operation:?} {status} {code}");
            }
        }
    }

    #[test]
    fn a_write_that_broke_in_the_middle_has_an_unknown_outcome() {
        for (status, code) in [(500, "InternalFailure"), (503, "ServiceUnavailable"), (500, "HealthUnavailable")] {
            assert_eq!(classify(Read, &answered(status, code, "")), Class::NotReady, "{code}");
            assert_eq!(classify(Register, &answered(status, code, "")), Class::OutcomeUnknown, "{code}");
            assert_eq!(classify(Deregister, &answered(status, code, "")), Class::OutcomeUnknown, "{code}");
        }
        for status in [200, 204, 302, 400, 404, 500, 502, 503, 504, 599] {
            assert_eq!(classify(Register, &unreadable(status)), Class::OutcomeUnknown, "{status}");
            assert_eq!(classify(Deregister, &unreadable(status)), Class::OutcomeUnknown, "{status}");
        }
    }

    #[test]
    fn an_answer_that_cannot_be_read_is_transport_on_a_read() {
        for (status, want) in [
            (200, Class::Transport),
            (302, Class::Transport),
            (400, Class::Transport),
            (500, Class::Transport),
            (502, Class::NotReady),
            (503, Class::NotReady),
            (504, Class::NotReady),
            (429, Class::Throttled),
            (401, Class::Auth),
            (403, Class::Auth),
        ] {
            assert_eq!(classify(Read, &unreadable(status)), want, "{status}");
        }
    }

    #[test]
    fn invalid_target_waits_while_the_instance_starts_pages_otherwise_and_is_a_question_on_the_way_out() {
        assert_eq!(classify(Register, &answered(400, "InvalidTarget", NOT_RUNNING)), Class::NotReady);
        assert_eq!(classify(Register, &answered(400, "InvalidTarget", "not in the same VPC")), Class::Refused);
        assert_eq!(classify(Read, &answered(400, "InvalidTarget", "gone")), Class::Refused);
        for text in [NOT_RUNNING, "gone", ""] {
            assert_eq!(classify(Deregister, &answered(400, "InvalidTarget", text)), Class::OutcomeUnknown);
        }
        assert_eq!(classify(Deregister, &answered(400, "ValidationError", "x")), Class::OutcomeUnknown);
        assert_eq!(classify(Register, &answered(400, "ValidationError", "x")), Class::Refused);
    }

    #[test]
    fn what_nobody_knows_is_transport_and_never_ends_anything() {
        for operation in [Read, Register, Deregister] {
            assert_eq!(classify(operation, &answered(400, "BrandNewCode", "")), Class::Transport);
        }
        assert_eq!(classify(Register, &answered(500, "BrandNewCode", "")), Class::OutcomeUnknown);
        assert_eq!(classify(Read, &Facts::default()), Class::Transport);
        assert_eq!(classify(Register, &Facts::default()), Class::OutcomeUnknown);
    }

    #[test]
    fn without_an_answer_only_a_refused_connection_proves_that_a_write_never_left() {
        let refused = || unanswered(&io::Error::from(io::ErrorKind::ConnectionRefused));
        for operation in [Read, Register, Deregister] {
            assert_eq!(classify(operation, &refused()), Class::Transport);
        }
        for kind in [io::ErrorKind::ConnectionReset, io::ErrorKind::TimedOut, io::ErrorKind::UnexpectedEof] {
            assert_eq!(classify(Read, &unanswered(&kind.into())), Class::Transport);
            assert_eq!(classify(Register, &unanswered(&kind.into())), Class::OutcomeUnknown);
            assert_eq!(classify(Deregister, &unanswered(&kind.into())), Class::OutcomeUnknown);
        }
    }

    #[test]
    fn missing_credentials_are_auth_and_a_write_with_them_never_left() {
        let facts = unanswered(&io::Error::other("an error occurred while loading credentials"));
        for operation in [Read, Register, Deregister] {
            assert_eq!(classify(operation, &facts), Class::Auth);
        }
    }

    #[test]
    fn a_message_never_carries_the_signed_request() {
        let text = "The request signature does not match.\nx-amz-security-token:IQoJb3JpZ2luX2VjSECRET";
        let f = fault(Read, "DescribeTargetHealth", &answered(403, "SignatureDoesNotMatch", text));
        assert_eq!(
            f.message,
            "DescribeTargetHealth: HTTP 403 SignatureDoesNotMatch: The request signature does not match."
        );
        let long = fault(Read, "x", &answered(400, "ValidationError", &"y".repeat(10_000)));
        assert!(long.message.len() < 300);
    }
}
