//! kubelet-evictiond: measures the node and its pods for whoever asks, has pods evicted when the node runs short of something, and has
//! containers' logs rotated.
//!
//! # Serves / calls
//! `kubelet.evictiond.v1.Stats`, `.Pressure` and `.Images` on its socket. Calls kubelet-syncd for the pods, the runtime's images, their
//! folder and what the runtime knows of disks and containers, to evict a pod, to remove an image, for what is done with logs, and to
//! tell when the machine was out of memory; kubelet-volnetd's broker for its state folder, for what wakes a reading, and for rotated
//! logs that it compresses; and has file systems entered by kubelet-walker.
//!
//! # Privileges
//! Its own user and no capability. The kernel's log is a descriptor that it is passed, for reading.
//!
//! # Security
//! Landlock leaves reading of files in /proc and in the mounted control groups (`bulkhead_privileges`), the system call filter
//! no socket family but Unix. What pods control (names, depth and number of files in their volumes) is entered by
//! kubelet-walker, whose answers are numbers.
//!
//! # State
//! On disk since when thresholds are met ([`eviction::judge::Ledger`]) and images are unused ([`image_gc::ledger::Ledger`]), and what
//! of the kernel's log was dealt with ([`oom::ledger::Ledger`]). In memory the last sample, for rates; what volumes use, measured again
//! after `volumeStatsAggPeriod` (a minute where nothing is configured), and other disk figures, after 5 s (`disk_reader`); and the
//! runtime's last answer of disks and containers, which is asked for again after 20 s, or after 5 s while it lacks a container that
//! runs, or one without a cgroup runs ([`service`]).
//!
//! # When it fails
//! Without kubelet-syncd the node's own statistics go on and `pods_known` is false until it has told all pods once;
//! after that the last list is used, and while a new one starts its pods that still run count. A file system that hangs takes away the
//! figures of that pod alone, and keeps one of kubelet-walker's workers. Without kubelet-walker nothing is known of disks, and the rest
//! goes on.
//! Statistics of pods are measured when somebody asks, or when one of them is to be evicted; with gate CSIVolumeHealth what drivers tell
//! of their volumes is asked for in each volumeStatsAggPeriod.
//!
//! # Modules
//! A module uses only those above it in this table (`tests/tests/files/layers.rs` holds it to that).
//!
//! | module | tells |
//! |---|---|
//! | [`kernel`] | what /proc says of the machine |
//! | [`cgroup`] | usage of control groups, v1 or v2 |
//! | [`disk`] | usage of file systems and folders, and how long it is good for |
//! | `machine` | processors, memory, block devices, mounts |
//! | `network` | counters of interfaces, numbers of sockets |
//! | `processes` | open files of processes |
//! | `starts` | when containers started |
//! | `stats` | readings as the messages of the API |
//! | [`rates`] | CPU rates from two readings |
//! | `ask_syncd` | how kubelet-syncd is asked: each question and each list has an end |
//! | [`oom`] | which processes the kernel has killed for want of memory, by its log |
//! | `pods` | which pods there are, as kubelet-syncd has them |
//! | `known_pods` | which of the pods before still count while it starts |
//! | `runtime_pods` | figures of pods that are the runtime's to tell, in the place of our own |
//! | `runtime` | what only the runtime knows of disks and containers |
//! | `groupless` | containers without a cgroup, by what the runtime tells |
//! | `question` | how long a question that takes its time is waited for |
//! | [`walker`] | what kubelet-walker is asked |
//! | `persistent` | what persistent volumes hold, as their drivers say |
//! | `detail` | one cgroup with everything of it |
//! | `unrated` | whose CPU rate a sample lacks |
//! | `sample` | one sample: the node, its pods, their containers |
//! | `disk_figures` | what a sample says of disks |
//! | `traced` | which sample is a span of a pod's trace |
//! | `incomplete` | of which volumes the log is told that they were not measured as a whole |
//! | `metrics` | this process's own metric families |
//! | `disk_reader` | has disks measured, and keeps their figures |
//! | [`service`] | the answers: one sample for all who take one of its age |
//! | [`signals`] | what is left of each resource, and when to look again |
//! | [`image_gc`] | which images go, and when |
//! | [`logs`] | which container's log gets a new file, what of the rotated ones is compressed, and what goes |
//! | [`eviction`] | which thresholds are met, which conditions the node has, which pod goes |
//! | `run` | what runs in this process, and with what |
//!
//! # Tasks and channels
//! | task | takes | gives |
//! |---|---|---|
//! | gRPC ([`service`]) | calls | the newest sample, measured on a pool of threads when it is too old |
//! | measuring for metrics | that somebody reads them | a sample |
//! | health of volumes (`persistent`), with gate CSIVolumeHealth | the time of the next question | figures of volumes; kubelet-syncd, who asks the drivers, tells the events |
//! | the state folder | volnetd's broker | the lock |
//! | a question to the runtime (`question`), one at a time | a sample that needs it | what it says of disks and containers, of pods |
//! | requests to kubelet-walker ([`walker`]), one task each | a sample that needs them | figures; one that hangs is named |
//! | the eviction manager ([`eviction::manager`]) | the time of the next reading, readings of file systems (mpsc) | conditions (watch), evictions to kubelet-syncd |
//! | one for each event of the kernel's ([`signals::sensors`]) | memory use at which a threshold is met (watch), the kernel's word | a reading at once |
//! | rounds of garbage collection ([`image_gc::rounds`]) | the time of the next one, how full the image file system is (watch) | removals to kubelet-syncd |
//! | the rotation of logs ([`logs::manager`]) | the time of the next look | steps to kubelet-syncd; rotated logs, one task each, compressed |
//! | the kernel's log ([`oom::watch`]) | records, as they are written; kubelet-syncd's life | counts, events to kubelet-syncd |
//! | reports ([`eviction::pressure`]) | conditions (watch), kubelet-syncd's life | the conditions, until they are taken |
//!
//! # Known gaps
//! Sockets are counted by network, which a pod's containers share: whose a descriptor is, the kernel shows to tracers alone.

mod ask_syncd;
pub mod cgroup;
mod detail;
pub mod disk;
mod disk_figures;
mod disk_reader;
pub mod eviction;
mod groupless;
pub mod image_gc;
mod incomplete;
pub mod kernel;
mod known_pods;
pub mod logs;
mod machine;
mod metrics;
mod network;
pub mod oom;
mod persistent;
mod pods;
mod processes;
mod question;
pub mod rates;
mod run;
mod runtime;
mod runtime_pods;
mod sample;
pub mod service;
pub mod signals;
mod starts;
mod stats;
mod traced;
mod unrated;
pub mod walker;

pub use metrics::Metrics;
pub use pods::{NodeWord, Pod, PodContainer, PodSource, PodVolume, SyncdPods, VolumeKind};
pub use run::run;
pub use runtime::{ContainerFigures, RuntimeDisks, RuntimeSource, SyncdRuntime};
pub use runtime_pods::PodFigures;
pub use sample::{NodePaths, Sample, SampleScope, Sampler};
