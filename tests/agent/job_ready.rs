//! A job that could not be started takes no node out of service.

use crate::fakes::{Fake, good};
use crate::running::Running;
use backstop::control::protocol::RunReply;
use backstop::core::error::{Class, Fault};
use backstop::core::exit::Exit;
use backstop::core::job::{JobSpec, RebootPolicy, Verdict};
use backstop::core::plan::Kind;

fn job(reboots: bool) -> Kind {
    let argv = vec!["true".into()];
    Kind::Patch(JobSpec { name: "true".into(), argv, reboots, reboot: RebootPolicy::Never, unit: None })
}

fn refused(reply: &RunReply) -> Option<u8> {
    if let RunReply::Refused { exit, .. } = reply { Some(*exit) } else { None }
}

#[tokio::test]
async fn a_job_that_cannot_be_started_is_refused_by_what_stands_in_its_way_and_never_before_a_latch() {
    let fake = Fake::new();
    let r = Running::start(&fake).await;
    for (class, exit) in [
        (Class::Refused, Exit::Usage),
        (Class::NotReady, Exit::Busy),
        (Class::Auth, Exit::Unreachable),
        (Class::Transport, Exit::Unreachable),
    ] {
        fake.no_job(Some(Fault::new(class, "no unit")));
        assert_eq!(refused(&r.begin(job(false)).await), Some(exit.code()), "{class:?}");
    }
    assert_eq!((r.stage(), fake.balancer_writes()), (None, 0));
    // A failed cycle, with all of this as it is.
    fake.no_job(None);
    fake.job_ends(Some(Verdict { result: backstop::core::job::JobResult::Exited(1), ..good() }));
    r.begin(job(false)).await;
    r.until("home, latched", 300, |r| r.stage().is_none() && r.fake.record().open_latches().count() == 1).await;
    fake.no_job(Some(Fault::new(Class::Refused, "no unit")));
    assert_eq!(refused(&r.begin(job(false)).await), Some(Exit::Latched.code()));
}
