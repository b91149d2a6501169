//! In which order managers are asked for hints and give resources: a container at a time, or the pod as a whole (upstream
//! `topologymanager/scope*.go`).

use std::collections::BTreeMap;

use super::hints::{Hint, HintProvider, Refusal};
use super::machine::Machine;
use super::merge::merge;
use super::options::{NumaInfo, Policy, Scope, TopologyManagerError, TopologyOptions};
use crate::request::PodRequest;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TopologyManager {
    policy: Policy,
    scope: Scope,
    options: TopologyOptions,
    numa: NumaInfo,
}

impl TopologyManager {
    /// With policy `none` neither options nor machine matter.
    ///
    /// # Errors
    /// Settings that there are not, or a machine that they do not fit.
    pub fn new(
        policy: &str,
        scope: &str,
        options: &BTreeMap<String, String>,
        machine: &Machine,
    ) -> Result<Self, TopologyManagerError> {
        if policy == "none" {
            let (options, numa) = (TopologyOptions::default(), NumaInfo::default());
            return Ok(TopologyManager { policy: Policy::None, scope: Scope::default(), options, numa });
        }
        let options = TopologyOptions::parse(options)?;
        let numa = NumaInfo::of(machine, options)?;
        Ok(TopologyManager { policy: Policy::parse(policy)?, scope: Scope::parse(scope)?, options, numa })
    }

    pub fn policy(&self) -> Policy {
        self.policy
    }

    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// Gives a pod what it asks of all managers (devices, CPUs, memory: in that order). A refusal leaves them with what they gave
    /// so far: the caller works on copies.
    ///
    /// # Errors
    /// It cannot be had, or not as the policy demands.
    pub fn admit(&self, pod: &PodRequest, providers: &mut [&mut dyn HintProvider]) -> Result<(), Refusal> {
        match self.scope {
            _ if self.policy == Policy::None => {
                self.each_container(pod, providers, |_, _| Ok(Hint { affinity: None, preferred: false }))
            }
            Scope::Container => self.each_container(pod, providers, |providers, name| {
                let container = pod.container(name);
                let hints: Vec<_> = providers.iter().filter_map(|p| Some(p.hints(pod, container?))).collect();
                let (best, admitted) = merge(self.policy, &self.numa, self.options, &hints);
                let refused = || match pod.by_pod() {
                    true => Refusal::pod_topology(
                        "pod with pod-level resources failed admission with a container-level topology manager",
                    ),
                    false => Refusal::topology(),
                };
                admitted.then_some(best).ok_or_else(refused)
            }),
            Scope::Pod => {
                let hints: Vec<_> = providers.iter().map(|provider| provider.pod_hints(pod)).collect();
                let (best, admitted) = merge(self.policy, &self.numa, self.options, &hints);
                if !pod.by_pod() {
                    if !admitted {
                        return Err(Refusal::topology());
                    }
                    return self.each_container(pod, providers, |_, _| Ok(best));
                }
                if !admitted {
                    return Err(Refusal::pod_topology(
                        "pod with pod-level resources failed admission under pod-scope topology manager",
                    ));
                }
                providers.iter_mut().try_for_each(|provider| provider.allocate_pod(pod, best))
            }
        }
    }

    fn each_container(
        &self,
        pod: &PodRequest,
        providers: &mut [&mut dyn HintProvider],
        best: impl Fn(&[&mut dyn HintProvider], &str) -> Result<Hint, Refusal>,
    ) -> Result<(), Refusal> {
        for container in &pod.containers {
            let best = best(providers, &container.name)?;
            providers.iter_mut().try_for_each(|provider| provider.allocate(pod, container, best))?;
        }
        Ok(())
    }
}
