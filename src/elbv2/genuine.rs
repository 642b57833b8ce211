//! Is a 200 really the answer to that call, and all of it?
//!
//! `RegisterTargets` and `DeregisterTargets` answer with nothing, so that the SDK does not look at the body at all: a
//! proxy's login page with status 200 would be a success. And what the SDK reads of a cut answer it takes for the whole:
//! a list of targets without its last rows, or without any. This looks.

use aws_sdk_elasticloadbalancingv2::config::interceptors::{
    AfterDeserializationInterceptorContextRef, BeforeDeserializationInterceptorContextMut,
};
use aws_sdk_elasticloadbalancingv2::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_smithy_types::body::SdkBody;
use http_body_util::Limited;
use std::error::Error;

/// No answer is longer: a group has a thousand targets at most, and a row of it some hundred bytes. The SDK itself would
/// read for as long as somebody sends.
const BODY_MAX_BYTES: usize = 4 * 1024 * 1024;

/// The element that the answer must be: from its opening to its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnswerElement(pub(super) &'static str);

impl Intercept for AnswerElement {
    fn name(&self) -> &'static str {
        "AnswerElement"
    }

    fn modify_before_deserialization(
        &self,
        context: &mut BeforeDeserializationInterceptorContextMut<'_>,
        _runtime_components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let body = context.response_mut().take_body();
        *context.response_mut().body_mut() = SdkBody::from_body_1_x(Limited::new(body, BODY_MAX_BYTES));
        Ok(())
    }

    fn read_after_deserialization(
        &self,
        context: &AfterDeserializationInterceptorContextRef<'_>,
        _runtime_components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        if context.output_or_error().is_err() {
            return Ok(()); // a failure already, with a better reason
        }
        let response = context.response();
        let body = response.body().bytes().unwrap_or_default();
        if response.status().is_success() && !self.is_whole(&String::from_utf8_lossy(body)) {
            return Err(format!("the answer is not a whole {}: cut, or not from ELBv2?", self.0).into());
        }
        Ok(())
    }
}

impl AnswerElement {
    fn is_whole(self, text: &str) -> bool {
        let Some((_, rest)) = text.split_once(&format!("<{}", self.0)) else { return false };
        let rest = rest.trim_end();
        let without_content = rest.ends_with("/>") && rest.matches('<').count() == 0;
        without_content || rest.ends_with(&format!("</{}>", self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::AnswerElement;

    #[test]
    fn an_answer_is_whole_from_its_opening_to_its_end() {
        let element = AnswerElement("AResponse");
        for whole in [
            "<AResponse></AResponse>",
            "<?xml version=\"1.0\"?>\n<AResponse xmlns=\"x\"><R/></AResponse>\n",
            "<AResponse/>",
            "<AResponse xmlns=\"x\" />",
        ] {
            assert!(element.is_whole(whole), "{whole}");
        }
        for not in [
            "",
            "<html>AResponse</html>",
            "<AResponse>",
            "<AResponse><R/>",
            "<AResponse><R></AResp",
            "</AResponse>",
            "{}",
        ] {
            assert!(!element.is_whole(not), "{not}");
        }
    }
}
