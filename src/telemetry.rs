//! The agent's own log: to stdout, as the config says. A constant message, facts as fields, never a secret.

use crate::config::{Log, LogFormat, LogLevel};
use tracing::Level;

/// Starts logging. A second call changes nothing.
pub fn start(log: &Log) {
    let level = match log.level {
        LogLevel::Error => Level::ERROR,
        LogLevel::Warn => Level::WARN,
        LogLevel::Info => Level::INFO,
        LogLevel::Debug => Level::DEBUG,
        LogLevel::Trace => Level::TRACE,
    };
    // The HTTP stacks log every connection at debug: only this program's own lines go below `info`.
    let filter =
        tracing_subscriber::filter::Targets::new().with_default(level.min(Level::WARN)).with_target("backstop", level);
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
