//! `backstop alert test`: does a page arrive?

use super::context::Ctx;
use super::text::{commands, table};
use crate::clock::Clock;
use crate::control::ask::Ask;
use crate::control::client::ClientError;
use crate::control::protocol::{TestReply, TestRequest, VERSION};
use crate::core::exit::Exit;

/// What can be done about alerts.
#[derive(clap::Subcommand, Debug)]
pub(super) enum AlertVerb {
    /// Send a test page, and its end, through every pager (admin; without an agent: straight from the config)
    Test(TestArgs),
}

/// `backstop alert test [--sink NAME]`
#[derive(clap::Args, Debug)]
pub(super) struct TestArgs {
    /// Only this pager, by the name that `status` shows
    #[arg(long, value_name = "NAME")]
    sink: Option<String>,
    /// One object on stdout
    #[arg(long)]
    json: bool,
}

/// Exits with 0 only where every pager has accepted both.
pub(super) async fn alert(ctx: &mut Ctx<'_>, verb: AlertVerb) -> Exit {
    let AlertVerb::Test(args) = verb;
    let r = TestRequest { sink: args.sink };
    if let Err(exit) = ctx.checked(&Ask::AlertTest(r.clone()), args.json) {
        return exit;
    }
    let reply = match ctx.client.alert_test(&r).await {
        Ok(reply) => reply,
        Err(e @ ClientError::NoAgent { .. }) => match without_agent(ctx, &r).await {
            Some(reply) => reply,
            None => return ctx.no_answer(&e, false, args.json),
        },
        Err(e) => return ctx.no_answer(&e, false, args.json),
    };
    ctx.show(args.json, &reply, lines);
    Exit::from_code(reply.exit).unwrap_or(Exit::Internal)
}

/// Whoever may read the secrets of the config may send with them.
async fn without_agent(ctx: &mut Ctx<'_>, r: &TestRequest) -> Option<TestReply> {
    let config = ctx.config.as_ref()?;
    let (sinks, wrong) = crate::alerts::sinks(&config.pager);
    let (fleet, node) = (config.fleet.to_string(), config.node.name.to_string());
    let now = ctx.clock.now();
    let results = crate::alerts::test::try_all(&sinks, r.sink.as_deref(), &fleet, &node, &now).await;
    ctx.out.complain("backstop: the agent is not running; the config's pagers are asked directly");
    for why in &wrong {
        ctx.out.complain(format!("backstop: {why}"));
    }
    Some(crate::alerts::test::reply(results, wrong.is_empty(), VERSION))
}

fn lines(reply: &TestReply) -> Vec<String> {
    let word = |accepted| if accepted { "ok" } else { "FAILED" };
    let row =
        |r: &crate::control::protocol::TestResult| vec![r.sink.clone(), word(r.accepted).to_owned(), r.message.clone()];
    let mut lines = table(&reply.results.iter().map(row).collect::<Vec<_>>());
    if reply.results.is_empty() {
        lines.push("There is no such pager: backstop config show".to_owned());
    }
    lines.extend(commands(&reply.next));
    lines
}
