//! kubelet-volnetd: its verbs, guards, lists and watches, asked of the model and of the real one on real folders, mounts and cgroups.

mod guards;
mod pods;
mod rotation;
mod sockets;
mod subject;
mod volumes;

use anyhow::Result;
use bulkhead_testkit::skip::{Lack, skip_this_test};

use crate::{in_tokio, scenarios};
use subject::Subject;

async fn hold(subject: &Subject) -> Result<()> {
    scenarios!(subject;
        pods::a_pods_places,
        pods::a_pods_limits,
        pods::what_was_never_made_is_gone,
        pods::what_is_no_id,
        pods::what_nobody_knows_goes,
        guards::only_who_knows_may_destroy,
        guards::another_life_is_another_epoch,
        sockets::each_watch_begins_with_all_there_is,
        sockets::a_plugin_comes_and_comes_again,
        sockets::what_the_broker_opens,
        rotation::a_logs_names,
    )
}

async fn hold_volumes(subject: &Subject) -> Result<()> {
    scenarios!(subject;
        volumes::a_volumes_life,
        volumes::what_is_not_prepared,
        volumes::intents_outlive_a_life,
    )
}

#[test]
fn the_model_is_a_kubelet_volnetd() -> Result<()> {
    in_tokio(async { hold(&Subject::model()?).await })
}

#[test]
fn kubelet_volnetd_is_what_the_model_takes_it_for() -> Result<()> {
    if !bulkhead_testkit::machine::is_root() {
        return skip_this_test(Lack::Root);
    }
    in_tokio(async {
        let subject = Subject::real()?;
        hold(&subject).await?;
        hold_volumes(&subject).await
    })
}
