//! Names of things. Opaque to the core; validated where they enter.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Arc<str>);

        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> $name {
                $name(text.into())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

id! {
    /// Identity of a machine: the EC2 instance id. Never a host name or machine id, which images share.
    InstanceId
}
id! {
    /// One cycle, for ever: slots, latches and jobs carry it. `c-` and twelve hex digits.
    CycleId
}
id! {
    /// What a person calls a node.
    NodeName
}

impl CycleId {
    /// The id of the latch that this cycle sets when it fails: one per cycle, so that setting it twice is one latch.
    pub fn latch(&self) -> LatchId {
        LatchId(format!("L-{}", self.0.strip_prefix("c-").unwrap_or(&self.0)).into())
    }
}

id! {
    /// The latch of one failed cycle, as people type it.
    LatchId
}
