//! A node on virtual time in one thread, driven by a seed (decision 88, [docs/simulation.md](../../../docs/simulation.md)).
//!
//! kubelet-syncd, kubelet-statusd and kubelet-evictiond run whole and unchanged, from `run` on, between models of their
//! peers, over the sockets that they have on a node.
//!
//! | module | what it is |
//! |---|---|
//! | [`dice`] | numbers of the seed |
//! | [`schedule`] | workload and faults of a seed, drawn beforehand |
//! | [`coverage`] | which states and ways were seen |
//! | [`world`] | what is true, and the story |
//! | [`checks`], [`api_checks`] | what must hold |
//! | [`runtime`], [`stop`], [`volnetd`], [`apiserver`], [`attacher`], [`csi_driver`] | models of the peers |
//! | [`allocator`], [`dra_driver`] | the same of controllers of claims, and of a DRA driver |
//! | [`device_plugin`] | the same of a device plugin |
//! | [`resources`], [`resources_schedule`] | devices and CPUs of containers' own: what is true and must hold; workload and faults |
//! | [`volumes`], [`volumes_schedule`] | volumes of claims: what is true and must hold; workload and faults |
//! | [`claims`], [`claims_schedule`] | claims of drivers' devices: what is true and must hold; workload and faults |
//! | [`probes_schedule`] | probes |
//! | [`pressure`], [`pressure_checks`], [`pressure_schedule`] | what the node is short of: what is true; what must hold; workload and faults |
//! | [`memory`], [`memory_schedule`] | what the kernel kills for want of memory: its log, how containers have ended, what must hold; what comes to an end |
//! | [`back_off`] | pauses between restarts |
//! | [`sizes`], [`sizes_schedule`] | CPU and memory of containers that run: what is given and must hold; what is asked for |
//! | [`drain_schedule`] | a node that is drained |
//! | [`hooks`], [`hooks_schedule`] | hooks of containers: how they run and what must hold; which there are |
//! | [`versions`], [`versions_schedule`], [`gateway`] | what passes between processes of different versions; who is replaced; who stands between them |
//! | [`disk`], [`disk_schedule`] | state files: what is there after a power cut, what must hold; faults of the disk |
//! | [`logs`], [`logs_checks`] | files of containers' logs: what is true; what must hold |
//! | [`root_dir`], [`workers`], [`volnetd_csi`] | kubelet-volnetd's own verbs for volumes: where they work; who works for them; what is told of them |
//! | [`walker`], [`relay`] | what kubelet-evictiond asks: a model of kubelet-walker; the way to kubelet-syncd |
//! | [`observer`] | who listens to what is told |
//! | [`process`] | a process that gets turns |
//! | [`node`] | the processes together, and time |
//! | [`outcome`] | what became of one run |
//! | [`search`] | many runs, each in a process of its own; shrinking |
//! | [`mutants`] | mistakes that are to be found |

pub mod allocator;
pub mod api_checks;
pub mod apiserver;
pub mod attacher;
pub mod back_off;
pub mod checks;
pub mod claims;
pub mod claims_schedule;
pub mod coverage;
pub mod csi_driver;
pub mod device_plugin;
pub mod dice;
pub mod disk;
pub mod disk_schedule;
pub mod dra_driver;
pub mod drain_schedule;
pub mod gateway;
pub mod hooks;
pub mod hooks_schedule;
pub mod hours_schedule;
pub mod logs;
pub mod logs_checks;
pub mod memory;
pub mod memory_schedule;
pub mod mutants;
pub mod node;
pub mod observer;
pub mod outcome;
pub mod pressure;
pub mod pressure_checks;
pub mod pressure_schedule;
pub mod probes_schedule;
pub mod process;
pub mod relay;
pub mod resources;
pub mod resources_schedule;
pub mod root_dir;
pub mod runtime;
pub mod schedule;
pub mod search;
pub mod sizes;
pub mod sizes_schedule;
pub mod stop;
pub mod versions;
pub mod versions_schedule;
pub mod volnetd;
pub mod volnetd_csi;
pub mod volumes;
pub mod volumes_schedule;
pub mod walker;
pub mod worker_socket;
pub mod workers;
pub mod world;
