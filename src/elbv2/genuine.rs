//! Is a 200 to a write really an answer to that write?
//!
//! `RegisterTargets` and `DeregisterTargets` answer with nothing, so that the SDK does not look at the body at all: a
//! proxy's login page with status 200 would be a success. This looks.

use aws_sdk_elasticloadbalancingv2::config::interceptors::AfterDeserializationInterceptorContextRef;
use aws_sdk_elasticloadbalancingv2::config::{ConfigBag, Intercept, RuntimeComponents};
use std::error::Error;

/// The element that the answer must contain.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnswerElement(pub(super) &'static str);

impl Intercept for AnswerElement {
    fn name(&self) -> &'static str {
        "AnswerElement"
    }

    fn read_after_deserialization(
        &self,
        context: &AfterDeserializationInterceptorContextRef<'_>,
        _runtime_components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let response = context.response();
        let body = response.body().bytes().unwrap_or_default();
        let genuine = String::from_utf8_lossy(body).contains(self.0);
        if response.status().is_success() && !genuine {
            return Err(format!("the answer does not contain {}: not from ELBv2?", self.0).into());
        }
        Ok(())
    }
}
