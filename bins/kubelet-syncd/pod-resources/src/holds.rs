//! What containers have for themselves, without anybody's wire format.

/// Memory of NUMA nodes that one container has for itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Memory {
    /// `memory`, or the name of a huge page resource.
    pub kind: String,
    pub bytes: u64,
    /// NUMA nodes that it is of, together.
    pub nodes: Vec<u32>,
}

/// One device of a plugin.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Device {
    /// The extended resource that it is one of.
    pub resource: String,
    pub id: String,
    /// NUMA nodes that it is near to; None: the plugin has named none.
    pub nodes: Option<Vec<i64>>,
}

/// A claim that a driver has prepared.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Claim {
    pub namespace: String,
    pub name: String,
    pub devices: Vec<ClaimDevice>,
}

/// One device of a claim: driver, pool and name make it unique.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClaimDevice {
    pub driver: String,
    pub pool: String,
    pub device: String,
    /// Of a device with consumable capacity.
    pub share_id: Option<String>,
    /// Qualified names of CDI, as the driver gave them.
    pub cdi: Vec<String>,
}

/// What one container has for itself; all empty: nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Holds {
    pub cpus: Vec<u32>,
    pub memory: Vec<Memory>,
    pub devices: Vec<Device>,
    pub claims: Vec<Claim>,
}

/// A container that is listed: an init container that ends is not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Container {
    pub name: String,
    /// An init container with `restartPolicy: Always`.
    pub sidecar: bool,
    pub holds: Holds,
}

/// A pod: its sidecars, then its containers, in the order of the spec.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pod {
    pub namespace: String,
    pub name: String,
    pub containers: Vec<Container>,
}

/// What containers can have for themselves at all, taken or not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Allocatable {
    pub cpus: Vec<u32>,
    pub memory: Vec<Memory>,
    /// Healthy ones.
    pub devices: Vec<Device>,
}

/// Which pods are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// Neither over nor about to be forgotten (upstream `GetActivePods`).
    Active,
    /// All that the sources want (upstream `GetPods`).
    All,
}

/// Who knows all this. Nothing waits: what is told is kept ready.
pub trait Providers: Send + Sync + 'static {
    fn pods(&self, which: Which) -> Vec<Pod>;

    /// An active pod.
    fn pod(&self, namespace: &str, name: &str) -> Option<Pod>;

    fn allocatable(&self) -> Allocatable;
}
