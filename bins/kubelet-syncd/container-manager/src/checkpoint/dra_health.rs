//! `dra_health_state`: what drivers have told of the health of their devices (upstream `cm/dra/healthinfo.go`, `cm/dra/state`). Plain
//! JSON without a checksum: what is cut off or damaged counts for nothing, and the next word of a driver replaces it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::go::{CheckpointError, json, parse};

/// The file's name in the root directory.
pub const FILE: &str = "dra_health_state";

/// By driver (upstream `DevicesHealthMap`).
pub type Drivers = BTreeMap<String, DriverHealth>;

/// What one driver has told (upstream `DriverHealthState`).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DriverHealth {
    /// By `<pool>/<device>`.
    pub devices: Option<BTreeMap<String, DeviceHealth>>,
}

/// What was told of one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DeviceHealth {
    pub pool_name: String,
    pub device_name: String,
    /// `Healthy`, `Unhealthy`, and anything else for unknown.
    pub health: String,
    /// When it was told last.
    pub last_updated: Timestamp,
    /// Nanoseconds for which it counts; 0: the default.
    pub health_check_timeout: i64,
    pub message: String,
}

impl Default for DeviceHealth {
    fn default() -> Self {
        DeviceHealth {
            pool_name: String::new(),
            device_name: String::new(),
            health: String::new(),
            // Long ago, as Go's zero is: it counts no more.
            last_updated: Timestamp::UNIX_EPOCH,
            health_check_timeout: 0,
            message: String::new(),
        }
    }
}

/// The file of these drivers.
///
/// # Errors
/// None that a driver can cause.
pub fn write(drivers: &Drivers) -> Result<Vec<u8>, CheckpointError> {
    json(drivers)
}

/// The drivers of a file.
///
/// # Errors
/// It is cut off or damaged.
pub fn read(bytes: &[u8]) -> Result<Drivers, CheckpointError> {
    Ok(parse::<Option<Drivers>>(bytes)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As upstream's kubelet writes it, on a machine with another time zone.
    const FROM_GO: &str = r#"{"dra.example.com":{"Devices":{"node-a/gpu-0":{"PoolName":"node-a","DeviceName":"gpu-0","Health":"Unhealthy","LastUpdated":"2026-11-25T21:34:07.123456789+01:00","HealthCheckTimeout":30000000000,"Message":"ECC \u003e 3"},"node-a/gpu-1":{"PoolName":"node-a","DeviceName":"gpu-1","Health":"Healthy","LastUpdated":"2026-11-25T21:34:07.5+01:00","HealthCheckTimeout":90000000000,"Message":""}}}}"#;

    #[test]
    fn the_file_is_upstreams() {
        let drivers = read(FROM_GO.as_bytes()).unwrap();
        let devices = drivers["dra.example.com"].devices.as_ref().unwrap();
        assert_eq!(devices["node-a/gpu-0"].message, "ECC > 3");
        let written = String::from_utf8(write(&drivers).unwrap()).unwrap();
        let in_utc = FROM_GO.replace("T21:", "T20:").replace("+01:00", "Z");
        assert_eq!(written, in_utc);
        assert_eq!(write(&Drivers::new()).unwrap(), b"{}");
    }

    #[test]
    fn what_is_damaged_is_refused_and_what_lacks_is_nothing() {
        for damaged in ["", "{\"a\":{\"Devices\":{\"p/d\":{\"PoolName\":\"p\"", "[]", "{\"a\":1}", "{} {}"] {
            read(damaged.as_bytes()).unwrap_err();
        }
        assert!(read(b"null").unwrap().is_empty() && read(b"{}").unwrap().is_empty());
        let bare = read(br#"{"a":{"Devices":null},"b":{"Devices":{"p/d":{"Later":1}}}}"#).unwrap();
        assert_eq!(bare["a"].devices, None);
        assert_eq!(bare["b"].devices.as_ref().unwrap()["p/d"], DeviceHealth::default());
    }
}
