//! Rotation of containers' logs (upstream `pkg/kubelet/logs/container_log_manager.go`, decision 61): which log is too large, what of
//! the rotated ones is compressed and what goes ([`plan`]), and a loop that looks every `containerLogMonitorInterval` ([`manager`]).
//!
//! This process opens no file: sizes come from kubelet-walker, all of them in one question; files are renamed and removed by
//! kubelet-volnetd, for kubelet-syncd ([`syncd`]); what is compressed comes and goes as descriptors ([`compress`]). Each pass looks
//! anew and remembers nothing of the one before, so that whatever was cut short is found and finished by the next.

pub mod compress;
pub mod manager;
pub mod plan;
mod syncd;
