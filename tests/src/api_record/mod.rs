//! What the internal API promises, as data: messages, enums and services by name, read from compiled descriptors or from
//! a record of a released version (`proto/recorded/`).

mod rules;
mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};
use prost_reflect::{Cardinality, DescriptorPool, EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor};

pub use rules::{Break, Rule, breaks};

/// Packages that are ours; what else a descriptor set names (`google.protobuf`) is nobody's to change.
const OURS: &str = "kubelet.";

/// The API of one released version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// As `Hello` tells it.
    pub version: String,
    /// The commit that was recorded.
    pub revision: String,
    pub api: Api,
}

/// Everything by its full name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Api {
    pub messages: BTreeMap<String, Message>,
    pub enums: BTreeMap<String, Enum>,
    /// Methods by service and name.
    pub services: BTreeMap<String, BTreeMap<String, Method>>,
}

/// Fields by number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    pub fields: BTreeMap<u32, Field>,
    pub reserved: Reserved,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    pub name: String,
    /// `uint32`, a full name, or `map<string,bytes>`.
    pub kind: String,
    /// `one`, `optional` (its absence can be told from its default), `repeated` or `map`.
    pub cardinality: String,
    pub json: String,
    pub oneof: Option<String>,
}

/// Numbers by name: two names may share one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Enum {
    pub values: BTreeMap<String, i64>,
    pub reserved: Reserved,
}

/// What must not be used again. Ranges have both ends in them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reserved {
    pub ranges: BTreeSet<(i64, i64)>,
    pub names: BTreeSet<String>,
}

impl Reserved {
    fn holds(&self, number: i64) -> bool {
        self.ranges.iter().any(|(first, last)| (*first..=*last).contains(&number))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Method {
    pub input: String,
    pub input_streams: bool,
    pub output: String,
    pub output_streams: bool,
}

impl Api {
    /// From an encoded `FileDescriptorSet`.
    ///
    /// # Errors
    /// The bytes are none.
    pub fn from_descriptors(bytes: &[u8]) -> Result<Self> {
        Ok(Self::from_pool(&DescriptorPool::decode(bytes).context("these are no descriptors")?))
    }

    /// Compiles every `.proto` file below the folder.
    ///
    /// # Errors
    /// The folder cannot be read, or something in it does not compile.
    pub fn from_folder(folder: &Path) -> Result<Self> {
        let mut files = Vec::new();
        let mut folders = vec![folder.to_owned()];
        while let Some(next) = folders.pop() {
            for entry in std::fs::read_dir(&next).with_context(|| next.display().to_string())? {
                let path = entry?.path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "proto") {
                    files.push(path);
                }
            }
        }
        files.sort();
        let set = protox::compile(&files, [folder]).with_context(|| format!("compiling {}", folder.display()))?;
        let pool = DescriptorPool::from_file_descriptor_set(set).context("linking the descriptors")?;
        Ok(Self::from_pool(&pool))
    }

    fn from_pool(pool: &DescriptorPool) -> Self {
        let messages = pool.all_messages().filter(|m| m.full_name().starts_with(OURS) && !m.is_map_entry());
        let enums = pool.all_enums().filter(|e| e.full_name().starts_with(OURS));
        let services = pool.services().filter(|s| s.full_name().starts_with(OURS));
        Api {
            messages: messages.map(|m| (m.full_name().to_owned(), message(&m))).collect(),
            enums: enums.map(|e| (e.full_name().to_owned(), enumeration(&e))).collect(),
            services: services
                .map(|service| {
                    let methods = service.methods().map(|method| {
                        let described = Method {
                            input: method.input().full_name().to_owned(),
                            input_streams: method.is_client_streaming(),
                            output: method.output().full_name().to_owned(),
                            output_streams: method.is_server_streaming(),
                        };
                        (method.name().to_owned(), described)
                    });
                    (service.full_name().to_owned(), methods.collect())
                })
                .collect(),
        }
    }
}

fn message(descriptor: &MessageDescriptor) -> Message {
    Message {
        fields: descriptor.fields().map(|f| (f.number(), field(&f))).collect(),
        reserved: Reserved {
            // A message's ranges come with their end outside.
            ranges: descriptor.reserved_ranges().map(|r| (i64::from(r.start), i64::from(r.end) - 1)).collect(),
            names: descriptor.reserved_names().map(str::to_owned).collect(),
        },
    }
}

fn field(descriptor: &FieldDescriptor) -> Field {
    let explicit = descriptor.field_descriptor_proto().proto3_optional();
    let (kind, cardinality) = match descriptor.kind() {
        Kind::Message(entry) if descriptor.is_map() => {
            let [key, value] = [entry.map_entry_key_field(), entry.map_entry_value_field()];
            (format!("map<{:?},{:?}>", key.kind(), value.kind()), "map")
        }
        kind if descriptor.cardinality() == Cardinality::Repeated => (format!("{kind:?}"), "repeated"),
        kind => (format!("{kind:?}"), if explicit { "optional" } else { "one" }),
    };
    let oneof = descriptor.containing_oneof().filter(|oneof| !oneof.is_synthetic());
    Field {
        name: descriptor.name().to_owned(),
        kind,
        cardinality: cardinality.to_owned(),
        json: descriptor.json_name().to_owned(),
        oneof: oneof.map(|oneof| oneof.name().to_owned()),
    }
}

fn enumeration(descriptor: &EnumDescriptor) -> Enum {
    Enum {
        values: descriptor.values().map(|v| (v.name().to_owned(), i64::from(v.number()))).collect(),
        reserved: Reserved {
            ranges: descriptor.reserved_ranges().map(|r| (i64::from(*r.start()), i64::from(*r.end()))).collect(),
            names: descriptor.reserved_names().map(str::to_owned).collect(),
        },
    }
}
