//! kubelet-flexvolume: arguments, configuration, privileges, then questions until there are none for a while.

use std::error::Error;
use std::process::ExitCode;

use bulkhead_config::NodeConfig;
use bulkhead_daemon::arguments::{self, Arguments};
use bulkhead_daemon::privileges::Program;
use bulkhead_helper::start;
use bulkhead_ipc::common::FlexRequest;
use kubelet_flexvolume::act::{self, Places};
use kubelet_flexvolume::calls::Calls;

const ABOUT: &str = "calls FlexVolume drivers for kubelet-volnetd";

/// Drivers wait for what is far away: one that is slow holds up none of the others.
const AT_ONCE: usize = 64;

fn main() -> ExitCode {
    let places = match places() {
        Ok(Some(places)) => places,
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kubelet-flexvolume: {}", bulkhead_types::chain(&*error));
            return ExitCode::FAILURE;
        }
    };
    let calls = Calls::default();
    start::run(Program::Flexvolume, AT_ONCE, move |question: FlexRequest, pipe| {
        let (places, calls) = (places.clone(), calls.clone());
        async move {
            let (reply, left) = act::answer(&places, &calls, &question).await;
            drop(question);
            start::give(&pipe, &reply);
            drop(pipe);
            // A driver that cannot be ended keeps its place, so that there are never more of them than places.
            if let Some(left) = left {
                left.ended().await;
            }
        }
    })
}

/// `None`: something was printed, and that is all.
fn places() -> Result<Option<Places>, Box<dyn Error>> {
    match arguments::parse("kubelet-flexvolume", ABOUT, std::env::args().skip(1))? {
        Arguments::Run { run_dir } => {
            let config = NodeConfig::load(&run_dir.join("config.json"))?;
            Ok(Some(Places::of(&config)))
        }
        Arguments::Print(text) => {
            println!("{text}");
            Ok(None)
        }
    }
}
