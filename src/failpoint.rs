//! Named points at which a test build aborts itself: `BACKSTOP_CRASH_AT=before-deregister`. Nothing in other builds.

/// Aborts here in a test build that was told to. The name is `<side>-<effect>`.
#[macro_export]
macro_rules! crash_point {
    ($side:expr, $label:expr) => {
        #[cfg(feature = "failpoints")]
        $crate::failpoint::reached($side, $label);
    };
}

/// See [`crash_point`].
#[cfg(feature = "failpoints")]
pub fn reached(side: &str, label: &str) {
    let Ok(at) = std::env::var("BACKSTOP_CRASH_AT") else { return };
    let Some(effect) = at.strip_prefix(side).and_then(|rest| rest.strip_prefix('-')) else { return };
    if effect == label {
        std::process::abort();
    }
}
