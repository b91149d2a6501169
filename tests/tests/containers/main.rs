//! What containers are given, how they start, run again and end: one test binary of the files below, each of which
//! says what it asks.
//! (`tests/README.md` says why they share one.)

mod admission;
mod golden;
mod hooks;
mod hostile_pods;
mod init_containers;
mod lost_things;
mod network_identity;
mod pod_environment;
mod pod_files;
mod pod_resources;
mod pods_api;
mod probes;
mod resize;
mod resource_managers;
mod restarts_of_containers;
mod runtimes;
mod security_context;
mod termination;
mod volumes;
