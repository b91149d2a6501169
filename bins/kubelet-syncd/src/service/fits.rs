//! What of a pod's state is told where it is too large for a message: a state that cannot be read ends its reader's stream
//! each time. The reader would hear no more of that pod, and one that has just started of none behind it.

use bulkhead_ipc::MAX_POD_BYTES;
use bulkhead_ipc::syncd::PodState;
use prost::Message as _;

/// For what an update adds to its state.
const ROOM: usize = 1024;

/// What may be left out, in this order: what only people look at, what a mirror pod is made of, what is told to the API
/// server.
#[derive(Debug, Clone, Copy)]
enum Part {
    RecentEvents,
    Mirror,
    Status,
}

/// The state, without what there is no room for.
pub fn fitting(state: &PodState) -> PodState {
    let bytes = state.encoded_len();
    let mut told = state.clone();
    for part in [Part::RecentEvents, Part::Mirror, Part::Status] {
        if told.encoded_len() + ROOM <= MAX_POD_BYTES {
            break;
        }
        match part {
            Part::RecentEvents => told.recent_events.clear(),
            Part::Mirror => told.static_pod_json.clear(),
            Part::Status => {
                told.status_json.clear();
                told.api = None;
            }
        }
        let (name, namespace, uid) = (&state.name, &state.namespace, &state.uid);
        tracing::warn!(pod = name, namespace, uid, bytes, left_out = ?part, "pod state is too large for a message: leaving parts out");
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_ipc::syncd::{ApiObject, Event};

    fn state(status: usize, copy: usize, mirror: usize) -> PodState {
        PodState {
            uid: "u".into(),
            status_json: vec![b'x'; status],
            static_pod_json: vec![b'x'; mirror],
            api: Some(ApiObject { status_json: vec![b'x'; copy], ..ApiObject::default() }),
            recent_events: vec![Event::default()],
            ..PodState::default()
        }
    }

    #[test]
    fn a_pod_that_etcd_can_hold_is_streamed_whole_and_a_larger_one_breaks_no_stream() {
        let object = 1536 << 10;
        for (what, state, events, mirror, status) in [
            ("small", state(9000, 9000, 9000), 1, 9000, 9000),
            ("as large as objects are", state(object, object, object), 1, object, object),
            ("a manifest that no server would take", state(object, object, 10 << 20), 0, 0, object),
            ("a status that no server would take", state(10 << 20, object, 0), 0, 0, 0),
        ] {
            let told = fitting(&state);
            assert!(told.encoded_len() + ROOM <= MAX_POD_BYTES, "{what}");
            let parts = (told.recent_events.len(), told.static_pod_json.len(), told.status_json.len());
            assert_eq!(parts, (events, mirror, status), "{what}");
            assert_eq!(told.api.is_some(), status > 0, "{what}");
        }
    }
}
