//! The signal that stops a container: as the spec names it (`SIGRTMIN+1`), and as CRI numbers it. Only with the gate
//! `ContainerStopSignals` (upstream `pkg/kubelet/kuberuntime/helpers.go`).

use crate::v1::Container;
use bulkhead_cri::v1::Signal;

use crate::node_facts::NodeFacts;

/// What CreateContainer is told; the runtime's own choice where the container names none.
pub fn wanted(container: &Container, facts: &NodeFacts) -> Signal {
    let name = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.stop_signal.as_deref());
    name.filter(|_| facts.stop_signals).and_then(parse).unwrap_or(Signal::RuntimeDefault)
}

fn parse(name: &str) -> Option<Signal> {
    Signal::from_str_name(&name.replace('+', "PLUS").replace('-', "MINUS")).filter(|s| *s != Signal::RuntimeDefault)
}

/// The name of the signal that the runtime says will be sent; None when it says nothing.
pub fn shown(number: i32) -> Option<String> {
    let signal = Signal::try_from(number).ok().filter(|s| *s != Signal::RuntimeDefault)?;
    Some(signal.as_str_name().replace("PLUS", "+").replace("MINUS", "-"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::pod;
    use crate::node_facts::HostFacts;

    #[test]
    fn names_and_numbers() {
        for (name, signal) in [
            ("SIGTERM", Signal::Sigterm),
            ("SIGRTMIN", Signal::Sigrtmin),
            ("SIGRTMIN+15", Signal::Sigrtminplus15),
            ("SIGRTMAX-1", Signal::Sigrtmaxminus1),
        ] {
            assert_eq!(parse(name), Some(signal));
            assert_eq!(shown(signal as i32).as_deref(), Some(name));
        }
        assert_eq!((parse("SIGNOPE"), parse("RUNTIME_DEFAULT"), shown(0), shown(999)), (None, None, None, None));
    }

    #[test]
    fn only_with_the_gate() {
        let pod = pod(serde_json::json!({"containers": [{"name": "a", "lifecycle": {"stopSignal": "SIGUSR1"}}]}));
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let mut facts = NodeFacts::new(HostFacts::default());
        assert_eq!(wanted(container, &facts), Signal::RuntimeDefault);
        facts.stop_signals = true;
        assert_eq!(wanted(container, &facts), Signal::Sigusr1);
    }
}
