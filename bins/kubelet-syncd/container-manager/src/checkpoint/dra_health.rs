//! `dra_health_state`: what drivers have told of the health of their devices (upstream `cm/dra/healthinfo.go`, `cm/dra/state`). Plain
//! JSON without a checksum: what is cut off or damaged counts for nothing, and the next word of a driver replaces it. A value of
//! another type counts as none, and all else of the file is heeded, as Go's decoder has it (which heeds nothing of what follows a time
//! that it cannot read).

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::go::{CheckpointError, json, parse};

/// The file's name in the root directory.
pub const FILE: &str = "dra_health_state";

/// By driver (upstream `DevicesHealthMap`).
pub type Drivers = BTreeMap<String, DriverHealth>;

/// What one driver has told (upstream `DriverHealthState`).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct DriverHealth {
    /// By `<pool>/<device>`.
    pub devices: Option<BTreeMap<String, DeviceHealth>>,
}

/// What was told of one device.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct DeviceHealth {
    pub pool_name: String,
    pub device_name: String,
    /// `Healthy`, `Unhealthy`, and anything else for unknown.
    pub health: String,
    /// When it was told last; where a file does not say 1970, long ago: it counts no more.
    pub last_updated: Timestamp,
    /// Nanoseconds for which it counts; 0: the default.
    pub health_check_timeout: i64,
    pub message: String,
}

/// The file of these drivers.
///
/// # Errors
/// None that a driver can cause.
pub fn write(drivers: &Drivers) -> Result<Vec<u8>, CheckpointError> {
    json(drivers)
}

/// What a file says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Found {
    pub drivers: Drivers,
    /// Where a value of another type stands, as `driver: pool/device: field`.
    pub wrong: Vec<String>,
}

/// The drivers of a file.
///
/// # Errors
/// It is cut off, or no JSON: Go looks at the whole of a text before it reads any of it.
pub fn read(bytes: &[u8]) -> Result<Found, CheckpointError> {
    let (file, mut found) = (parse::<Value>(bytes)?, Found::default());
    for (driver, told) in found.object(&file, &[]).into_iter().flatten() {
        let told = found.object(told, &[driver]);
        let devices = told.and_then(|told| told.get("Devices")).filter(|devices| !devices.is_null());
        let devices = devices.map(|devices| {
            let all = found.object(devices, &[driver, "Devices"]).into_iter().flatten();
            all.map(|(key, told)| (key.clone(), found.device(driver, key, told))).collect()
        });
        found.drivers.insert(driver.clone(), DriverHealth { devices });
    }
    Ok(found)
}

impl Found {
    /// The fields of an object; `null` has none, and neither has anything else.
    fn object<'a>(&mut self, value: &'a Value, at: &[&str]) -> Option<&'a Map<String, Value>> {
        if !value.is_object() && !value.is_null() {
            self.wrong.push(at.join(": "));
        }
        value.as_object()
    }

    fn field<T: DeserializeOwned + Default>(&mut self, of: &Map<String, Value>, at: [&str; 3]) -> T {
        let [.., name] = at;
        let Some(value) = of.get(name).filter(|value| !value.is_null()) else { return T::default() };
        T::deserialize(value).unwrap_or_else(|_| {
            self.wrong.push(at.join(": "));
            T::default()
        })
    }

    /// A device of the file. Who looks for it looks for its key, so that its names are the key's (a device's own has no slash).
    fn device(&mut self, driver: &str, key: &str, told: &Value) -> DeviceHealth {
        let (pool, name) = key.rsplit_once('/').unwrap_or(("", key));
        let (pool_name, device_name) = (pool.to_owned(), name.to_owned());
        let Some(told) = self.object(told, &[driver, key]) else {
            return DeviceHealth { pool_name, device_name, ..DeviceHealth::default() };
        };
        DeviceHealth {
            pool_name,
            device_name,
            health: self.field(told, [driver, key, "Health"]),
            last_updated: self.field(told, [driver, key, "LastUpdated"]),
            health_check_timeout: self.field(told, [driver, key, "HealthCheckTimeout"]),
            message: self.field(told, [driver, key, "Message"]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As upstream's kubelet writes it, on a machine with another time zone.
    const FROM_GO: &str = r#"{"dra.example.com":{"Devices":{"node-a/gpu-0":{"PoolName":"node-a","DeviceName":"gpu-0","Health":"Unhealthy","LastUpdated":"2026-11-25T21:34:07.123456789+01:00","HealthCheckTimeout":30000000000,"Message":"ECC \u003e 3"},"node-a/gpu-1":{"PoolName":"node-a","DeviceName":"gpu-1","Health":"Healthy","LastUpdated":"2026-11-25T21:34:07.5+01:00","HealthCheckTimeout":90000000000,"Message":""}}}}"#;

    #[test]
    fn the_file_is_upstreams() {
        let Found { drivers, wrong } = read(FROM_GO.as_bytes()).unwrap();
        assert!(wrong.is_empty(), "{wrong:?}");
        let devices = drivers["dra.example.com"].devices.as_ref().unwrap();
        assert_eq!(devices["node-a/gpu-0"].message, "ECC > 3");
        let written = String::from_utf8(write(&drivers).unwrap()).unwrap();
        let in_utc = FROM_GO.replace("T21:", "T20:").replace("+01:00", "Z");
        assert_eq!(written, in_utc);
        assert_eq!(write(&Drivers::new()).unwrap(), b"{}");
    }

    #[test]
    fn what_is_damaged_is_refused_and_what_lacks_is_nothing() {
        for damaged in ["", "{\"a\":{\"Devices\":{\"p/d\":{\"PoolName\":\"p\"", "{a:1}", "{} {}"] {
            read(damaged.as_bytes()).unwrap_err();
        }
        assert!(read(b"null").unwrap() == Found::default() && read(b"{}").unwrap() == Found::default());
        let Found { drivers, wrong } =
            read(br#"{"a":{"Devices":null},"b":{"Devices":{"p/q/d":{"Later":1}}}}"#).unwrap();
        assert_eq!(drivers["a"].devices, None);
        let bare = &drivers["b"].devices.as_ref().unwrap()["p/q/d"];
        assert_eq!((bare.pool_name.as_str(), bare.device_name.as_str()), ("p/q", "d"));
        assert!(bare.last_updated == Timestamp::UNIX_EPOCH && bare.health.is_empty() && wrong.is_empty());
    }

    /// As Go's decoder: the value alone counts for nothing.
    #[test]
    fn a_value_of_another_type_spoils_nothing_else() {
        let whole = read(FROM_GO.as_bytes()).unwrap().drivers;
        let with = |from: &str, to: &str| {
            let text = FROM_GO.replacen(from, to, 1);
            assert_ne!(text, FROM_GO, "{from}");
            let Found { mut drivers, wrong } = read(text.as_bytes()).unwrap();
            let devices = drivers.get_mut("dra.example.com").unwrap().devices.take().unwrap();
            assert_eq!(devices["node-a/gpu-1"], whole["dra.example.com"].devices.as_ref().unwrap()["node-a/gpu-1"]);
            (devices["node-a/gpu-0"].clone(), wrong.join(", "))
        };
        let first = &whole["dra.example.com"].devices.as_ref().unwrap()["node-a/gpu-0"];
        let at = |field: &str| format!("dra.example.com: node-a/gpu-0: {field}");
        for (from, to, field) in [
            ("\"Unhealthy\"", "7", "Health"),
            ("30000000000", "\"30s\"", "HealthCheckTimeout"),
            ("30000000000", "3.5", "HealthCheckTimeout"),
            ("\"ECC \\u003e 3\"", "[\"ECC\"]", "Message"),
            ("\"2026-11-25T21:34:07.123456789+01:00\"", "\"yesterday\"", "LastUpdated"),
        ] {
            let mut wanted = first.clone();
            match field {
                "Health" => wanted.health = String::new(),
                "HealthCheckTimeout" => wanted.health_check_timeout = 0,
                "Message" => wanted.message = String::new(),
                _ => wanted.last_updated = Timestamp::UNIX_EPOCH,
            }
            assert_eq!(with(from, to), (wanted, at(field)));
        }
        // By its key it is found all the same.
        assert_eq!(with("\"PoolName\":\"node-a\"", "\"PoolName\":{}"), (first.clone(), String::new()));
        for (text, wrong) in [
            ("[]", ""),
            ("7", ""),
            (r#"{"a":1}"#, "a"),
            (r#"{"a":{"Devices":[]}}"#, "a: Devices"),
            (r#"{"a":{"Devices":{"p/d":"x"}}}"#, "a: p/d"),
        ] {
            assert_eq!(read(text.as_bytes()).unwrap().wrong, [wrong], "{text}");
        }
    }
}
