//! What the configuration asks of garbage collection (upstream ImageGCPolicy).

use bulkhead_config::kubelet::KubeletConfiguration;

/// Ages in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// `imageGCHighThresholdPercent`: from so much used on images go.
    pub high_percent: i64,
    /// `imageGCLowThresholdPercent`: down to so much.
    pub low_percent: i64,
    /// `imageMinimumGCAge`: a younger image stays.
    pub min_age_ms: i64,
    /// `imageMaximumGCAge`: an image that was not used for longer goes; 0: none does.
    pub max_age_ms: i64,
}

impl Policy {
    /// From the configuration, which has been checked.
    pub fn of(config: &KubeletConfiguration) -> Self {
        let milliseconds = |age: std::time::Duration| i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
        Policy {
            high_percent: i64::from(config.image_gc_high_threshold_percent()),
            low_percent: i64::from(config.image_gc_low_threshold_percent()),
            min_age_ms: milliseconds(config.image_minimum_gc_age.to_std()),
            max_age_ms: milliseconds(config.image_maximum_gc_age.to_std()),
        }
    }

    /// Images go under disk pressure alone (upstream StartGarbageCollection).
    pub fn is_disabled(&self) -> bool {
        self.high_percent == 100 && self.max_age_ms == 0
    }
}
