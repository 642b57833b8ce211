//! What each kind of alert says: in one line, what backstop does by itself, whether a person is needed, and what to type.

use crate::core::finding::Kind;

/// One line: what is so.
pub(super) fn headline(kind: Kind, subject: &str, fleet: &str) -> String {
    let s = subject;
    match kind {
        Kind::OutOfService => format!("{s} OUT of the load balancer"),
        Kind::RunningNotRegistered => format!("{s} runs, and no target group knows it"),
        Kind::RegisteredNotRunning => format!("{s} is registered, and its node does not run"),
        Kind::WrongPort => format!("{s} is registered under another port"),
        Kind::Unhealthy if s == fleet => "EVERY registered node fails the load balancer's checks".to_owned(),
        Kind::Unhealthy => format!("{s} fails the load balancer's checks"),
        Kind::StuckInitial => format!("{s} stays `initial`, longer than its group's settings explain"),
        Kind::StuckDraining => format!("{s} stays `draining`, longer than its group's settings explain"),
        Kind::NotInUse => format!("{s} is registered, and gets no traffic"),
        Kind::BelowMinimum => "fewer nodes in service than minimum_healthy".to_owned(),
        Kind::BelowFloor => "TOO FEW nodes in service".to_owned(),
        Kind::CycleOverdue => format!("the cycle of {s} takes longer than it may"),
        Kind::MoreOutThanSlots => "more nodes are out than slots and holds explain".to_owned(),
        Kind::SlotHolderGone => format!("{s} holds a slot, and is gone or silent"),
        Kind::Latched => format!("the patch of {s} failed; patching is blocked"),
        Kind::Blind => format!("an agent cannot see: {s}"),
        Kind::AgentSilent => format!("the agent of {s} is silent"),
        Kind::NodeWithoutAgent => format!("{s} runs without an agent"),
        Kind::ForeignTarget => format!("{s} is registered, and belongs to no member"),
        Kind::MissingFromGroup => format!("{s} is registered in some of its groups only"),
        Kind::ConfigDiffers => format!("agents run with different settings ({s})"),
        Kind::TwoWithOneIdentity => format!("two agents say that they are {s}"),
        Kind::PatchOverdue => format!("{s} has not been patched for too long"),
        Kind::PatchRefused => format!("every patch of {s} is refused"),
        Kind::PausedTooLong => "patching has been paused for long".to_owned(),
        Kind::HeldTooLong => format!("{s} is held out for longer than it was to be"),
        Kind::HealedTooOften => format!("{s} had to register itself too often"),
        Kind::SinkRefuses => format!("a pager refuses pages ({s})"),
        Kind::ReleaseStuck => format!("{s} is back, but its slot cannot be given back"),
        Kind::ConfigUnusable => format!("the config of {s} cannot be used; no cycle starts there"),
        Kind::AgentFault => "a part of an agent failed".to_owned(),
        Kind::Test => "TEST of the pager; nothing is wrong".to_owned(),
    }
}

/// What backstop does about it by itself.
pub(super) fn doing(kind: Kind) -> &'static str {
    match kind {
        Kind::OutOfService | Kind::RunningNotRegistered | Kind::MissingFromGroup => {
            "the node's own agent registers it once its checks pass (backstop explain says what it waits for)"
        }
        Kind::Unhealthy => "changes no registration: removing nodes that fail together would not help",
        Kind::StuckInitial | Kind::StuckDraining => "a cycle under way waits; nothing else is changed",
        Kind::BelowMinimum => "no cycle starts anywhere; running nodes that are not registered register themselves",
        Kind::BelowFloor => "no node leaves; running nodes that are not registered register themselves at once",
        Kind::CycleOverdue | Kind::SlotHolderGone => {
            "the slot stays taken, and no other node leaves; peers latch it as lost"
        }
        Kind::Latched => "patching is BLOCKED on all nodes; the node comes back as soon as its check passes",
        Kind::MoreOutThanSlots => "no cycle starts until every node is explained or back",
        Kind::Blind => "keeps trying; unknown is never taken for good news, so nothing leaves service",
        Kind::HealedTooOften => "no longer registers this node by itself today",
        Kind::SinkRefuses => "keeps what was refused and tries again every hour; other pagers get every page",
        Kind::ReleaseStuck => "repeats the write until the fleet record acknowledges it; the node is in service",
        Kind::ConfigUnusable => "runs with the last good config; an unfinished way back goes on",
        Kind::AgentFault => "the part was started again; every way back goes on",
        Kind::TwoWithOneIdentity => "the guard `identity` refuses cycles on both",
        Kind::PausedTooLong | Kind::HeldTooLong => "what was ordered, until it is taken back",
        Kind::RegisteredNotRunning
        | Kind::WrongPort
        | Kind::NotInUse
        | Kind::AgentSilent
        | Kind::NodeWithoutAgent
        | Kind::ForeignTarget
        | Kind::ConfigDiffers
        | Kind::PatchOverdue
        | Kind::PatchRefused
        | Kind::Test => "nothing: it looks and tells",
    }
}

/// Is a human needed, and for what.
pub(super) fn human(kind: Kind) -> &'static str {
    match kind {
        Kind::OutOfService | Kind::RunningNotRegistered => {
            "YES, if it lasts: get Elasticsearch on the node to pass its check"
        }
        Kind::BelowFloor => "YES, now: the fleet may not carry its traffic",
        Kind::Unhealthy => "YES, now: look at the cluster and at what the health check asks",
        Kind::BelowMinimum => "YES: find out which node is missing and why",
        Kind::RegisteredNotRunning => "YES: start the node, or retire it if it is gone for good",
        Kind::WrongPort => "YES: register it under the right port and take the wrong target out",
        Kind::StuckInitial => "Soon: see why the load balancer's checks do not pass",
        Kind::StuckDraining => "Soon: see which connections do not end",
        Kind::NotInUse => "YES: the target is not wired to a listener or zone, or the instance is stopped",
        Kind::MissingFromGroup => "YES, if it lasts: register it in the group that lacks it",
        Kind::CycleOverdue | Kind::SlotHolderGone => "YES: look at that node; retire it if it is gone for good",
        Kind::MoreOutThanSlots => "YES: something else takes nodes out",
        Kind::Latched => "YES: find out why it failed, then clear the latch",
        Kind::Blind => "YES: this agent cannot tell what happens until the source answers",
        Kind::AgentSilent => "YES: start the agent, or retire the node if it is gone for good",
        Kind::NodeWithoutAgent => "Soon: install the agent there, or it is neither patched nor guarded",
        Kind::ForeignTarget => "Soon: nobody watches this target; install an agent or take it out",
        Kind::ConfigDiffers => "Soon: use the same file everywhere, then reload or restart the agents",
        Kind::TwoWithOneIdentity => "YES: one of them was copied; give each its own instance id",
        Kind::PatchOverdue | Kind::PatchRefused => "Soon: see what refuses",
        Kind::PausedTooLong => "Soon: unpause, or pause again with the reason of today",
        Kind::HeldTooLong => "Soon: put the node back",
        Kind::HealedTooOften => "YES: something keeps taking it out",
        Kind::SinkRefuses => "YES: a pager that refuses tells nobody; correct its key or address",
        Kind::ReleaseStuck => "Soon: get the fleet record's store to answer; nothing else is needed",
        Kind::ConfigUnusable => "YES: mend the file; the agent reads it again on reload",
        Kind::AgentFault => "Soon: please report it",
        Kind::Test => "no",
    }
}

/// Why a node is where it is.
pub(super) fn explain(node: &str) -> String {
    format!("backstop explain {node}   # from any node")
}

/// The next command.
pub fn next(kind: Kind, subject: &str) -> String {
    let node = subject.split(": ").next().unwrap_or(subject);
    let explain = || explain(node);
    match kind {
        Kind::OutOfService
        | Kind::RunningNotRegistered
        | Kind::RegisteredNotRunning
        | Kind::StuckInitial
        | Kind::StuckDraining
        | Kind::MissingFromGroup
        | Kind::CycleOverdue
        | Kind::SlotHolderGone
        | Kind::Latched
        | Kind::PatchOverdue
        | Kind::PatchRefused
        | Kind::HealedTooOften => explain(),
        Kind::BelowMinimum
        | Kind::BelowFloor
        | Kind::Unhealthy
        | Kind::MoreOutThanSlots
        | Kind::WrongPort
        | Kind::NotInUse
        | Kind::ForeignTarget
        | Kind::NodeWithoutAgent
        | Kind::TwoWithOneIdentity
        | Kind::ReleaseStuck
        | Kind::Test => "backstop status".to_owned(),
        Kind::Blind => format!("backstop status   # on {node}"),
        Kind::AgentSilent => format!("systemctl status backstop   # on {node}"),
        Kind::ConfigDiffers => "backstop config show   # on each node".to_owned(),
        Kind::PausedTooLong => "backstop unpause --reason \"...\"".to_owned(),
        Kind::HeldTooLong => format!("backstop rejoin --reason \"...\"   # on {node}"),
        Kind::SinkRefuses => format!("backstop alert test   # on {node}"),
        Kind::ConfigUnusable => format!("backstop config check   # on {node}"),
        Kind::AgentFault => format!("journalctl -u backstop -n 100   # on {node}"),
    }
}

/// And what comes after it.
pub(super) fn after(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::ConfigUnusable => Some("systemctl reload backstop"),
        Kind::Latched => Some("backstop latch list"),
        Kind::SinkRefuses => Some("systemctl reload backstop   # sends again at once"),
        Kind::OutOfService
        | Kind::RunningNotRegistered
        | Kind::RegisteredNotRunning
        | Kind::WrongPort
        | Kind::Unhealthy
        | Kind::StuckInitial
        | Kind::StuckDraining
        | Kind::NotInUse
        | Kind::BelowMinimum
        | Kind::BelowFloor
        | Kind::CycleOverdue
        | Kind::MoreOutThanSlots
        | Kind::SlotHolderGone
        | Kind::Blind
        | Kind::AgentSilent
        | Kind::NodeWithoutAgent
        | Kind::ForeignTarget
        | Kind::MissingFromGroup
        | Kind::ConfigDiffers
        | Kind::TwoWithOneIdentity
        | Kind::PatchOverdue
        | Kind::PatchRefused
        | Kind::PausedTooLong
        | Kind::HeldTooLong
        | Kind::HealedTooOften
        | Kind::ReleaseStuck
        | Kind::AgentFault
        | Kind::Test => None,
    }
}
