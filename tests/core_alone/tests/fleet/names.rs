//! Names and plans of the small fleet, built once: clones of them are counted pointers.
use super::{Config, GROUPS, NODES};
use backstop_core_alone::ids::{CycleId, InstanceId};
use backstop_core_alone::job::{JobSpec, RebootPolicy};
use backstop_core_alone::member::{Member, Says};
use backstop_core_alone::plan::{Kind, Limits, Plan};
use backstop_core_alone::record::{Extra, Hold, Latch, Pause, Slot};
use backstop_core_alone::settings::{BalancerKind, CheckSettings, GroupFacts, OwnTarget, TargetType};
use backstop_core_alone::target::{GroupArn, Target};
use backstop_core_alone::time::{BootId, Now};
use std::collections::HashMap;
use std::sync::Arc;

/// Cycles of one node that can leave something in the record.
pub const CYCLES: usize = 2;
/// Cycle numbers that leave nothing there: an operator's hold and return of an idle node.
pub const HOLD: u8 = 8;
pub const RETURN: u8 = 9;
/// Longer than anything that is polled or retried, shorter than any deadline.
pub const ACK_MAX_AGE_MS: u64 = 3_600_000;
pub const STALL_MS: u64 = 2 * ACK_MAX_AGE_MS;
pub const DEADLINE_MS: u64 = 10 * 86_400_000;
const MONTH_MS: u64 = 30 * 86_400_000;

/// Which plan: what a cycle is for, without its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum What {
    Patch,
    Hold,
    Return,
    Recovery,
}

/// A node's clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Clock {
    pub wall_ms: u64,
    pub boot: u32,
    pub since_boot_ms: u64,
}

impl Clock {
    /// Where the quotient puts every clock.
    pub const ZERO: Clock = Clock { wall_ms: 1_000_000 * MONTH_MS, boot: 1, since_boot_ms: MONTH_MS };

    pub fn next_boot(self) -> Clock {
        Clock { wall_ms: self.wall_ms + 60_000, boot: self.boot + 1, since_boot_ms: 1_000 }
    }
}

pub struct Names {
    pub instance: [InstanceId; NODES],
    pub boots: Vec<BootId>,
    pub groups: Vec<GroupArn>,
    pub members: Vec<Member>,
    pub plans: HashMap<(usize, u8, What), Arc<Plan>>,
    pub hold: Hold,
    pub order: Pause,
    pub empty: Arc<str>,
}

pub fn pause() -> Pause {
    Pause { by: "somebody".into(), reason: "a reason".into(), since_ms: 0, extra: Extra::new() }
}

impl Names {
    pub fn new(f: &Config) -> Names {
        let hold = Hold { node: "a-node".into(), order: pause(), for_s: MONTH_MS / 1_000, extra: Extra::new() };
        let instance = std::array::from_fn(|i| InstanceId(format!("i-{i}").into()));
        let groups: Vec<_> = (0..f.groups).map(|g| GroupArn(format!("arn/group-{g}/1").into())).collect();
        let target = |i: usize, g: usize| Target { group: groups[g].clone(), id: format!("i-{i}").into(), port: 9200 };
        let members = (0..f.n).map(|i| Member {
            schema: 1,
            instance: InstanceId(format!("i-{i}").into()),
            node: format!("node-{i}").as_str().into(),
            targets: (0..f.groups).map(|g| target(i, g)).collect(),
            agent: "1".into(),
            reads_schema: 1,
            boot: BootId("boot-1".into()),
            beat: 0,
            doing: "".into(),
            at_ms: 0,
            node_id: None,
            address: None,
            sees: Vec::new(),
            record: None,
            says: Says::default(),
            told: Vec::new(),
            extra: Extra::new(),
        });
        let mut names = Names {
            instance,
            boots: (0..64).map(|b| BootId(format!("boot-{b}").into())).collect(),
            groups: groups.clone(),
            members: members.collect(),
            plans: HashMap::new(),
            hold,
            order: pause(),
            empty: "".into(),
        };
        let patch = JobSpec {
            name: "patch".into(),
            argv: vec!["patch".into()],
            reboots: false,
            reboot: if f.reboot { RebootPolicy::Always } else { RebootPolicy::Never },
            unit: None,
        };
        for i in 0..f.n {
            for c in [1, 2, HOLD, RETURN] {
                for what in [What::Patch, What::Hold, What::Return, What::Recovery] {
                    let kind = match what {
                        What::Patch => Kind::Patch(patch.clone()),
                        What::Hold => Kind::Hold(names.hold.clone()),
                        What::Return => Kind::Return,
                        What::Recovery => Kind::Recovery,
                    };
                    names.plans.insert((i, c, what), Arc::new(plan(f, &names.instance[i], c, kind, &target)));
                }
            }
        }
        names
    }

    pub fn now(&self, c: Clock) -> Now {
        Now { wall_ms: c.wall_ms, boot: self.boots[c.boot as usize].clone(), since_boot_ms: c.since_boot_ms }
    }

    pub fn clock(&self, now: &Now) -> Clock {
        let boot = self.boots.iter().position(|b| *b == now.boot).expect("a known boot");
        Clock { wall_ms: now.wall_ms, boot: u32::try_from(boot).unwrap(), since_boot_ms: now.since_boot_ms }
    }

    pub fn node(&self, instance: &InstanceId) -> usize {
        self.instance.iter().position(|i| i == instance).expect("a known instance")
    }

    pub fn cycle(&self, i: usize, c: u8) -> CycleId {
        self.plans[&(i, c, What::Patch)].id.clone()
    }

    pub fn slot(&self, i: usize, c: u8) -> Slot {
        self.plans[&(i, c, What::Patch)].slot(0)
    }

    pub fn latch(&self, i: usize, cleared: bool) -> Latch {
        Latch {
            instance: self.instance[i].clone(),
            node: "a-node".into(),
            stage: self.empty.clone(),
            class: self.empty.clone(),
            message: self.empty.clone(),
            job: self.empty.clone(),
            since_ms: 0,
            cleared: cleared.then(|| self.order.clone()),
            extra: Extra::new(),
        }
    }
}

/// (node, number) of a cycle id.
pub fn cycle_of(id: &CycleId) -> (usize, u8) {
    let mut parts = id.as_str().split('-').skip(1).map(|p| p.parse::<u8>().expect("a number"));
    let (i, c) = (parts.next().unwrap(), parts.next().unwrap());
    (usize::from(i), c)
}

pub fn what_of(kind: &Kind) -> What {
    match kind {
        Kind::Patch(_) => What::Patch,
        Kind::Hold(_) => What::Hold,
        Kind::Return => What::Return,
        Kind::Recovery => What::Recovery,
    }
}

fn plan(f: &Config, instance: &InstanceId, c: u8, kind: Kind, target: &dyn Fn(usize, usize) -> Target) -> Plan {
    let i: usize = instance.as_str().trim_start_matches("i-").parse().unwrap();
    let facts = GroupFacts {
        target_type: TargetType::Instance,
        balancer: BalancerKind::Application,
        port: Some(9200),
        deregistration_delay_ms: 0,
        interval_ms: 1,
        healthy_threshold: 1,
    };
    assert!(f.groups <= GROUPS);
    Plan {
        id: CycleId(format!("c-{i}-{c}").into()),
        kind,
        instance: instance.clone(),
        node: "a-node".into(),
        by: "somebody".into(),
        request: "".into(),
        targets: (0..f.groups).map(|g| OwnTarget { target: target(i, g), facts }).collect(),
        check: CheckSettings {
            node_name: "node".into(),
            url: "http://own".into(),
            timeout_ms: 1,
            ca_file: None,
            api_key_file: None,
            basic_auth_file: None,
            client_cert_file: None,
            canary_index: None,
            expect: None,
            passes: if f.dwells { 2 } else { 1 },
            over_ms: u64::from(f.dwells),
            every_ms: 1,
        },
        port: 9200,
        limits: Limits {
            claim_ms: DEADLINE_MS,
            deregister_ms: DEADLINE_MS,
            drain_margin_ms: DEADLINE_MS,
            quiet_ms: u64::from(f.dwells),
            connections_left_fail: false,
            patch_ms: DEADLINE_MS,
            reboot_ms: DEADLINE_MS,
            check_ms: DEADLINE_MS,
            register_ms: DEADLINE_MS,
            settle_ms: DEADLINE_MS,
            bake_ms: u64::from(f.dwells),
            release_ms: DEADLINE_MS,
            ack_max_age_ms: ACK_MAX_AGE_MS,
            reboots_per_day: 1_000,
            poll_ms: 1,
        },
        rules: f.rules,
        overrides: Vec::new(),
    }
}
