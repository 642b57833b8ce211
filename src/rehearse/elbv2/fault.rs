//! What can go wrong with an API call, on demand.

use crate::rehearse::http::Response;

/// An action of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// `DescribeTargetGroups`
    DescribeTargetGroups,
    /// `DescribeTargetGroupAttributes`
    DescribeTargetGroupAttributes,
    /// `DescribeTargetHealth`
    DescribeTargetHealth,
    /// `RegisterTargets`
    RegisterTargets,
    /// `DeregisterTargets`
    DeregisterTargets,
    /// Anything else: answered `InvalidAction`.
    Other,
}

impl Action {
    /// The actions that are implemented.
    pub const ALL: [Action; 5] = [
        Action::DescribeTargetGroups,
        Action::DescribeTargetGroupAttributes,
        Action::DescribeTargetHealth,
        Action::RegisterTargets,
        Action::DeregisterTargets,
    ];

    /// As in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Action::DescribeTargetGroups => "DescribeTargetGroups",
            Action::DescribeTargetGroupAttributes => "DescribeTargetGroupAttributes",
            Action::DescribeTargetHealth => "DescribeTargetHealth",
            Action::RegisterTargets => "RegisterTargets",
            Action::DeregisterTargets => "DeregisterTargets",
            Action::Other => "Other",
        }
    }

    /// By its name in the API.
    pub fn parse(name: &str) -> Action {
        Action::ALL.into_iter().find(|a| a.name() == name).unwrap_or(Action::Other)
    }

    /// Does it change anything?
    pub const fn is_write(self) -> bool {
        matches!(self, Action::RegisterTargets | Action::DeregisterTargets)
    }
}

/// What happens to a call instead of the right answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// A well-formed error; the call is not applied.
    Error(ApiError),
    /// An HTML page of something in between; not applied.
    Html(u16),
    /// The connection is accepted and the request read; nothing is ever answered, nothing applied.
    Hang,
    /// **Applied**; the answer stops in mid-body, and the connection stays open.
    StallMidBody,
    /// **Applied**; the answer stops in mid-body with a close.
    TruncatedBody,
    /// A reset instead of an answer; not applied.
    Reset,
    /// `DescribeTargetHealth` answers 200 with no target in its list.
    EmptyList,
    /// 200 with a body that is no XML; not applied.
    Junk,
    /// 200 with no body at all; not applied.
    EmptyBody,
    /// `DescribeTargetHealth` shows only the first so many targets.
    PartialList(usize),
    /// **Applied**, and the connection closed before any answer.
    AppliedButLost,
    /// 200, and nothing changes.
    Ignored,
    /// The right answer, this much later (real milliseconds).
    Late(u64),
}

impl Trouble {
    /// For the log of calls.
    pub fn name(&self) -> String {
        match self {
            Trouble::Error(e) => e.code.clone(),
            Trouble::Html(status) => format!("html-{status}"),
            Trouble::Hang => "hang".to_owned(),
            Trouble::StallMidBody => "stall-mid-body".to_owned(),
            Trouble::TruncatedBody => "truncated-body".to_owned(),
            Trouble::Reset => "reset".to_owned(),
            Trouble::EmptyList => "empty-list".to_owned(),
            Trouble::Junk => "junk-200".to_owned(),
            Trouble::EmptyBody => "empty-200".to_owned(),
            Trouble::PartialList(n) => format!("partial-list-{n}"),
            Trouble::AppliedButLost => "applied-but-lost".to_owned(),
            Trouble::Ignored => "ignored".to_owned(),
            Trouble::Late(ms) => format!("late-{ms}-ms"),
        }
    }
}

/// When a [`Trouble`] strikes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Only this action; `None` = every one.
    pub action: Option<Action>,
    /// Only this group's ARN; `None` = every one.
    pub group: Option<String>,
    /// What happens.
    pub trouble: Trouble,
    /// So many matching calls go right first.
    pub skip: u32,
    /// Then so many go wrong; `None` = until cleared.
    pub times: Option<u32>,
}

impl Fault {
    /// On every call, until cleared. Narrow it with the methods below.
    pub const fn always(trouble: Trouble) -> Fault {
        Fault { action: None, group: None, trouble, skip: 0, times: None }
    }

    /// Only for this action.
    #[must_use]
    pub fn on(mut self, action: Action) -> Fault {
        self.action = Some(action);
        self
    }

    /// Only for this group.
    #[must_use]
    pub fn in_group(mut self, arn: &str) -> Fault {
        self.group = Some(arn.to_owned());
        self
    }

    /// Only so often.
    #[must_use]
    pub const fn times(mut self, times: u32) -> Fault {
        self.times = Some(times);
        self
    }

    /// Only after so many matching calls.
    #[must_use]
    pub const fn after(mut self, calls: u32) -> Fault {
        self.skip = calls;
        self
    }

    /// Does it strike this call? Counts the call.
    pub(super) fn strikes(&mut self, action: Action, group: Option<&str>) -> bool {
        let matches = self.action.is_none_or(|a| a == action)
            && self.group.as_deref().is_none_or(|g| Some(g) == group)
            && self.times != Some(0);
        if !matches {
            return false;
        }
        if self.skip > 0 {
            self.skip = self.skip.saturating_sub(1);
            return false;
        }
        self.times = self.times.map(|t| t.saturating_sub(1));
        true
    }
}

/// An error of the API as it goes over the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status.
    pub status: u16,
    /// `Code`
    pub code: String,
    /// `Message`
    pub message: String,
}

impl ApiError {
    /// Any code.
    pub fn new(status: u16, code: &str, message: impl Into<String>) -> ApiError {
        ApiError { status, code: code.to_owned(), message: message.into() }
    }
    /// 400 `Throttling`, as older endpoints say it.
    pub fn throttling() -> ApiError {
        ApiError::new(400, "Throttling", "Rate exceeded")
    }
    /// 400 `ThrottlingException`
    pub fn throttling_exception() -> ApiError {
        ApiError::new(400, "ThrottlingException", "Rate exceeded")
    }
    /// 503 `RequestLimitExceeded`, the EC2 way.
    pub fn request_limit_exceeded() -> ApiError {
        ApiError::new(503, "RequestLimitExceeded", "Request limit exceeded.")
    }
    /// 403 `AccessDenied`
    pub fn access_denied(action: Action) -> ApiError {
        let message = format!(
            "User: arn:aws:sts::123456789012:assumed-role/es-client/i-0 is not authorized to perform: \
             elasticloadbalancing:{} because no identity-based policy allows it",
            action.name()
        );
        ApiError::new(403, "AccessDenied", message)
    }
    /// 403 `ExpiredToken`
    pub fn expired_token() -> ApiError {
        ApiError::new(403, "ExpiredToken", "The security token included in the request is expired")
    }
    /// 403 `SignatureDoesNotMatch`
    pub fn signature_does_not_match() -> ApiError {
        ApiError::new(
            403,
            "SignatureDoesNotMatch",
            "Signature expired: 20260902T000000Z is now earlier than 20260902T001000Z",
        )
    }
    /// 400 `TargetGroupNotFound`
    pub fn target_group_not_found() -> ApiError {
        ApiError::new(400, "TargetGroupNotFound", "One or more target groups not found")
    }
    /// 400 `TooManyTargets`
    pub fn too_many_targets() -> ApiError {
        ApiError::new(400, "TooManyTargets", "You have reached the maximum number of targets")
    }
    /// 400 `InvalidTarget` with any text.
    pub fn invalid_target(text: impl Into<String>) -> ApiError {
        ApiError::new(400, "InvalidTarget", text)
    }
    /// 400 `InvalidTarget` for an instance that exists and is not running.
    pub fn not_running(id: &str) -> ApiError {
        ApiError::invalid_target(format!(
            "The following targets are not in a running state and cannot be registered: '{id}'"
        ))
    }
    /// 400 `ValidationError`
    pub fn validation(text: impl Into<String>) -> ApiError {
        ApiError::new(400, "ValidationError", text)
    }
    /// 500 `HealthUnavailable`
    pub fn health_unavailable() -> ApiError {
        ApiError::new(500, "HealthUnavailable", "The health of the specified targets could not be retrieved")
    }

    /// As XML.
    pub fn response(&self, request_id: &str) -> Response {
        let kind = if self.status >= 500 { "Receiver" } else { "Sender" };
        let body = format!(
            "<ErrorResponse xmlns=\"{}\"><Error><Type>{kind}</Type><Code>{}</Code><Message>{}</Message></Error>\
             <RequestId>{request_id}</RequestId></ErrorResponse>",
            super::wire::NAMESPACE,
            super::wire::escape(&self.code),
            super::wire::escape(&self.message),
        );
        Response::new(self.status, "text/xml", body)
    }
}
