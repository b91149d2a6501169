//! The container runtime: what kubelet-syncd builds on, asked of the model and of containerd.

mod events;
mod images;
mod life;
mod logs;
mod memory;
mod refusals;
mod restart;
mod sizes;
mod stop;
mod subject;

use anyhow::Result;
use bulkhead_testkit::{Lab, Release};

use crate::{in_tokio, scenarios};
use subject::Subject;

async fn hold(subject: &Subject) -> Result<()> {
    scenarios!(subject;
        life::a_pods_life,
        life::what_ends_by_itself,
        life::lists_are_filtered,
        life::what_is_removed_is_stopped_first,
        life::a_command_in_a_container,
        life::a_command_goes_with_its_container,
        refusals::names_are_reserved,
        refusals::what_is_unknown,
        refusals::everything_may_be_asked_twice,
        refusals::nothing_begins_in_a_sandbox_that_has_stopped,
        stop::a_signal_is_heeded,
        stop::grace_is_given_and_no_more,
        stop::an_end_of_its_own_is_not_waited_past,
        stop::two_may_ask,
        stop::who_goes_kills_nobody,
        images::images_that_are_there_and_not,
        events::each_change_is_told,
        events::an_event_says_what_the_pod_is_then,
        restart::a_sandbox_dies,
        restart::containers_run_on,
        logs::a_log_that_was_renamed,
        logs::logs_are_opened_again,
        sizes::what_a_container_is_given,
        memory::all_of_a_container_is_killed,
        memory::one_process_of_a_container_is_killed,
        memory::the_reason_is_no_event,
    )
}

#[test]
fn the_model_is_a_runtime() -> Result<()> {
    in_tokio(async { hold(&Subject::model()?).await })
}

#[test]
fn containerd_is_what_the_model_takes_it_for() -> Result<()> {
    hold_of(Release::from_environment()?)
}

/// The model has the events of the CRI, which the machine's own has not.
#[test]
fn a_newer_containerd_is_what_the_model_takes_it_for() -> Result<()> {
    hold_of(Release::V2_1)
}

fn hold_of(release: Release) -> Result<()> {
    let Some(lab) = lab(release)? else { return Ok(()) };
    in_tokio(async { hold(&Subject::containerd(lab)?).await })
}

/// A lab, or nothing (said loudly) where there is no root to build one.
pub(crate) fn lab(release: Release) -> Result<Option<Lab>> {
    use bulkhead_testkit::skip::{Lack, skip_this_test};
    if !bulkhead_testkit::machine::is_root() {
        skip_this_test(Lack::Root)?;
        return Ok(None);
    }
    // For whoever works on one test while others run.
    if std::env::var_os("BULKHEAD_BESIDE").is_some() {
        return Lab::start_beside_on(release).map(Some);
    }
    Lab::start_on(release).map(Some)
}
