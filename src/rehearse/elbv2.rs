//! An `ELBv2` API (Query protocol, version 2015-12-01) with a state machine behind it, and a handle for everything that
//! can go wrong with it.
//!
//! Real AWS has no conditional call, answers 200 to a deregistration of anything, and shows `draining` for the whole
//! delay: so does this. Durations are divided by the world's scale; attributes are reported at their full size.

mod control;
mod fault;
mod state;
mod wire;

pub use control::{Call, CheckJob, CheckResult, Control, Outcome, Pick};
pub use fault::{Action, ApiError, Fault, Trouble};
pub use state::{
    Checks, Ends, GroupSpec, HealthSpec, Instance, Key, NamedUnknown, ReadLag, RowSpec, Scope, TargetKind,
    WhileDraining,
};

use crate::rehearse::http::{self, Answer, End, Request, Response, Server, Service};
use crate::rehearse::pace;
use state::World;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::watch;
use wire::Form;

/// The API server.
#[derive(Debug)]
pub struct Elbv2 {
    server: Server,
    control: Control,
}

impl Elbv2 {
    /// An empty world with its API on `address` (port 0: a free one).
    pub async fn start(address: SocketAddr, scale: u32) -> io::Result<Elbv2> {
        Elbv2::start_with(address, Control::new(scale)).await
    }

    /// The API of a world that exists already: to come back after an outage, or to serve a second address.
    pub async fn start_with(address: SocketAddr, control: Control) -> io::Result<Elbv2> {
        let server = Server::start(address, Api(control.clone())).await?;
        Ok(Elbv2 { server, control })
    }

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// As the SDK's endpoint URL.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address())
    }

    /// The handle on the world behind it.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Ends the API; the world lives on in its handles.
    pub async fn stop(self) {
        self.server.stop().await;
    }
}

#[derive(Clone)]
struct Api(Control);

impl Service for Api {
    async fn serve(&self, stream: TcpStream, stop: watch::Receiver<bool>) {
        http::converse(stream, stop, |request| {
            let control = self.0.clone();
            async move {
                let (answer, late_ms) = answer(&control, &request);
                if let Some(ms) = late_ms {
                    pace::sleep(Duration::from_millis(ms)).await;
                }
                answer
            }
        })
        .await;
    }
}

/// A call, taken apart.
struct Asked {
    action: Action,
    name: String,
    group: Option<String>,
    targets: Vec<(String, Option<u16>)>,
    form: Form,
}

impl Asked {
    fn read(request: &Request) -> Asked {
        let form = Form::parse(&request.body);
        let name = form.get("Action").unwrap_or_default().to_owned();
        let targets = form
            .members("Targets")
            .into_values()
            .map(|fields| {
                let id = fields.get("Id").cloned().unwrap_or_default();
                (id, fields.get("Port").and_then(|p| p.parse().ok()))
            })
            .collect();
        let group = form
            .get("TargetGroupArn")
            .map(ToOwned::to_owned)
            .or_else(|| form.strings("TargetGroupArns").into_iter().next());
        Asked { action: Action::parse(&name), name, group, targets, form }
    }
}

/// One call: its answer, and how much later it is given (real milliseconds).
fn answer(control: &Control, request: &Request) -> (Answer, Option<u64>) {
    let asked = Asked::read(request);
    let mut world = control.lock();
    let request_id = format!("00000000-0000-4000-8000-{:012x}", world.next());
    let trouble = world.trouble_for(asked.action, asked.group.as_deref());
    let (reply, outcome) = perform(&mut world, &asked, trouble.as_ref(), &request_id);
    world.note(asked.action, asked.group, asked.targets, outcome);
    let late_ms = if let Some(Trouble::Late(ms)) = trouble { Some(ms) } else { None };
    (broken_as(trouble.as_ref(), reply), late_ms)
}

fn perform(world: &mut World, asked: &Asked, trouble: Option<&Trouble>, request_id: &str) -> (Response, Outcome) {
    let named = |t: &Trouble| Outcome::Trouble(t.name());
    match trouble {
        Some(Trouble::Error(error)) => (error.response(request_id), Outcome::Error(error.code.clone())),
        Some(t @ (Trouble::Html(_) | Trouble::Hang | Trouble::Reset | Trouble::Junk | Trouble::EmptyBody)) => {
            (Response::default(), named(t))
        }
        Some(t @ Trouble::Ignored) => (wire::result(&asked.name, "", request_id), named(t)),
        _ => match dispatch(world, asked, trouble) {
            Ok(inner) => (wire::result(&asked.name, &inner, request_id), trouble.map_or(Outcome::Ok, named)),
            Err(error) => (error.response(request_id), Outcome::Error(error.code)),
        },
    }
}

/// The right answer, broken in the asked way.
fn broken_as(trouble: Option<&Trouble>, reply: Response) -> Answer {
    let half = |reply: &Response| {
        let mut bytes = reply.encode(true);
        let cut = bytes.len().saturating_sub(reply.body.len().div_euclid(2).max(1));
        bytes.truncate(cut);
        bytes
    };
    match trouble {
        Some(Trouble::Html(status)) => {
            let page = "<html><head><title>upstream</title></head><body><center>nginx</center></body></html>";
            Answer::Reply(Response::new(*status, "text/html", page))
        }
        Some(Trouble::Hang) => Answer::Raw(Vec::new(), End::Stall),
        Some(Trouble::StallMidBody) => Answer::Raw(half(&reply), End::Stall),
        Some(Trouble::TruncatedBody) => Answer::Raw(half(&reply), End::Fin),
        Some(Trouble::Reset) => Answer::Raw(Vec::new(), End::Rst),
        Some(Trouble::AppliedButLost) => Answer::Raw(Vec::new(), End::Fin),
        Some(Trouble::Junk) => Answer::Reply(Response::new(200, "text/xml", "it works!")),
        Some(Trouble::EmptyBody) => Answer::Reply(Response::new(200, "text/xml", "")),
        Some(
            Trouble::Error(_) | Trouble::EmptyList | Trouble::PartialList(_) | Trouble::Ignored | Trouble::Late(_),
        )
        | None => Answer::Reply(reply),
    }
}

fn dispatch(world: &mut World, asked: &Asked, trouble: Option<&Trouble>) -> Result<String, ApiError> {
    world.throttle(asked.action)?;
    match asked.action {
        Action::DescribeTargetGroups => describe_groups(world, &asked.form),
        Action::DescribeTargetGroupAttributes => Ok(wire::attributes(world.group(required_group(asked)?)?)),
        Action::DescribeTargetHealth => describe_health(world, asked, trouble),
        Action::RegisterTargets => register(world, asked),
        Action::DeregisterTargets => deregister(world, asked),
        Action::Other => Err(ApiError::new(
            400,
            "InvalidAction",
            format!("Could not find operation {} for version 2015-12-01", asked.name),
        )),
    }
}

fn required_group(asked: &Asked) -> Result<&str, ApiError> {
    let missing = || {
        ApiError::validation(
            "1 validation error detected: Value null at 'targetGroupArn' failed to satisfy constraint: \
             Member must not be null",
        )
    };
    asked.group.as_deref().ok_or_else(missing)
}

fn required_targets(asked: &Asked) -> Result<&[(String, Option<u16>)], ApiError> {
    if asked.targets.is_empty() || asked.targets.iter().any(|(id, _)| id.is_empty()) {
        return Err(ApiError::validation("A target must be specified"));
    }
    Ok(&asked.targets)
}

fn describe_groups(world: &mut World, form: &Form) -> Result<String, ApiError> {
    let (arns, names) = (form.strings("TargetGroupArns"), form.strings("Names"));
    for arn in &arns {
        world.group(arn)?;
    }
    let known = |name: &String| world.groups.values().any(|g| g.spec.name == *name);
    if !names.iter().all(known) {
        return Err(ApiError::target_group_not_found());
    }
    let wanted = |arn: &String, name: &String| {
        (arns.is_empty() && names.is_empty()) || arns.contains(arn) || names.contains(name)
    };
    let members: String = world
        .groups
        .iter()
        .filter(|(arn, group)| wanted(arn, &group.spec.name))
        .map(|(arn, group)| wire::group(arn, group))
        .collect();
    Ok(format!("<TargetGroups>{members}</TargetGroups>"))
}

fn describe_health(world: &mut World, asked: &Asked, trouble: Option<&Trouble>) -> Result<String, ApiError> {
    let arn = required_group(asked)?;
    let port = world.group(arn)?.spec.health.port.map_or_else(|| "traffic-port".to_owned(), |p| p.to_string());
    let mut rows = if asked.targets.is_empty() { world.list(arn)? } else { world.by_name(arn, &asked.targets)? };
    match trouble {
        Some(Trouble::EmptyList) => rows.clear(),
        Some(Trouble::PartialList(n)) => rows.truncate(*n),
        _ => {}
    }
    Ok(wire::health_rows(&rows, &port))
}

fn register(world: &mut World, asked: &Asked) -> Result<String, ApiError> {
    let arn = required_group(asked)?;
    let (kind, registered) = {
        let group = world.group(arn)?;
        (group.spec.target_kind, group.targets.len())
    };
    let targets = required_targets(asked)?;
    // One bad target refuses the whole call.
    for (id, _) in targets {
        world.may_be_registered(kind, id)?;
    }
    if registered.saturating_add(targets.len()) > world.target_limit {
        return Err(ApiError::too_many_targets());
    }
    let origin = world.origin;
    for (id, port) in targets {
        let number = world.next();
        world.group(arn)?.register(&origin, number, id, *port)?;
    }
    Ok(String::new())
}

fn deregister(world: &mut World, asked: &Asked) -> Result<String, ApiError> {
    let arn = required_group(asked)?;
    world.group(arn)?;
    let origin = world.origin;
    for (id, port) in required_targets(asked)? {
        world.group(arn)?.deregister(&origin, id, *port);
    }
    Ok(String::new())
}
