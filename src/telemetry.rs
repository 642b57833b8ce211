//! The agent's own log: to stdout, as the config says. A constant message, facts as fields, never a secret.

use crate::config::{Log, LogFormat, LogLevel};
use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;

/// Raises (or lowers) single targets, as `aws_smithy_runtime=debug,hyper=info`.
const ENVIRONMENT: &str = "RUST_LOG";
/// What the stacks below say of a call is said again by this program, classified and cut. Their own lines carry whole
/// answers, which nobody has checked for secrets.
const STACKS: [&str; 5] = ["aws", "hyper", "reqwest", "rustls", "h2"];

/// Which lines are written.
fn filter(log: LogLevel, environment: Option<&str>) -> Targets {
    let level = match log {
        LogLevel::Error => Level::ERROR,
        LogLevel::Warn => Level::WARN,
        LogLevel::Info => Level::INFO,
        LogLevel::Debug => Level::DEBUG,
        LogLevel::Trace => Level::TRACE,
    };
    let stacks = STACKS.map(|target| (target, LevelFilter::OFF));
    // The libraries log every connection at debug: only this program's own lines go below `info`.
    let filter =
        Targets::new().with_default(level.min(Level::WARN)).with_targets(stacks).with_target("backstop", level);
    // What cannot be read there raises nothing.
    let raised = environment.and_then(|text| text.parse::<Targets>().ok());
    raised.into_iter().flatten().fold(filter, |filter, (target, level)| filter.with_target(target, level))
}

/// Starts logging. A second call changes nothing.
pub fn start(log: &Log) {
    let filter = filter(log.level, std::env::var(ENVIRONMENT).ok().as_deref());
    let registry = tracing_subscriber::layer::SubscriberExt::with(tracing_subscriber::registry(), filter);
    let started = match log.format {
        LogFormat::Json => {
            let layer = tracing_subscriber::fmt::layer().json().flatten_event(true).with_target(false);
            tracing::subscriber::set_global_default(tracing_subscriber::layer::SubscriberExt::with(registry, layer))
        }
        LogFormat::Text => {
            let layer = tracing_subscriber::fmt::layer().with_ansi(false).with_target(false);
            tracing::subscriber::set_global_default(tracing_subscriber::layer::SubscriberExt::with(registry, layer))
        }
    };
    drop(started);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stacks_below_are_silent_unless_the_environment_raises_them() {
        let sdk = "aws_smithy_runtime::client::orchestrator";
        for level in [LogLevel::Error, LogLevel::Warn, LogLevel::Info, LogLevel::Debug, LogLevel::Trace] {
            let quiet = filter(level, None);
            for target in [sdk, "aws_config::imds", "hyper::client", "hyper_util::client", "reqwest::connect"] {
                assert!(!quiet.would_enable(target, &Level::ERROR), "{target} at {level:?}");
            }
            assert!(quiet.would_enable("backstop::agent::turn", &Level::ERROR));
        }
        let raised = filter(LogLevel::Info, Some("aws_smithy_runtime=debug"));
        assert!(raised.would_enable(sdk, &Level::DEBUG));
        assert!(
            !raised.would_enable("aws_config::imds", &Level::WARN) && !raised.would_enable("hyper::x", &Level::WARN)
        );
        assert!(
            raised.would_enable("backstop::cli", &Level::INFO) && !raised.would_enable("backstop::cli", &Level::DEBUG)
        );
        assert!(!filter(LogLevel::Info, Some("=,=nonsense")).would_enable(sdk, &Level::ERROR));
    }
}
