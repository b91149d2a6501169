//! A process's metrics as text.

use prometheus::{Encoder as _, Registry, TextEncoder};

/// All families of the registry, and `process_*` of this process, in the text format 0.0.4.
pub fn encode(registry: &Registry) -> String {
    let mut text = Vec::new();
    let mut text = match TextEncoder::new().encode(&registry.gather(), &mut text) {
        Ok(()) => String::from_utf8(text).unwrap_or_default(),
        Err(error) => {
            tracing::warn!(%error, "metrics could not be encoded");
            String::new()
        }
    };
    text.push_str(&crate::process_metrics::of(None));
    text
}
