//! Do processes of this version and of every released one understand each other? Compares the internal API with the
//! records in `proto/recorded/`, and proves with broken copies that each rule bites.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::build::workspace_root;
use bulkhead_testkit::previous;
use bulkhead_testkit::skip::{Lack, skip};
use bulkhead_tests::api_record::{Api, Record, Rule, breaks};

fn records() -> Result<Vec<Record>> {
    let folder = workspace_root().join("proto/recorded");
    let mut records = Vec::new();
    for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "txt") {
            continue;
        }
        let record = Record::from_text(&std::fs::read_to_string(&path)?).with_context(|| path.display().to_string())?;
        ensure!(path.file_stem() == Some(record.version.as_ref()), "{} says {}", path.display(), record.version);
        records.push(record);
    }
    ensure!(!records.is_empty(), "there is no record in {}", folder.display());
    Ok(records)
}

#[test]
fn every_released_version_is_understood() -> Result<()> {
    let now = Api::from_descriptors(bulkhead_ipc::DESCRIPTORS)?;
    for record in records()? {
        let broken: Vec<String> = breaks(&record.api, &now).iter().map(|found| format!("  {found}")).collect();
        ensure!(
            broken.is_empty(),
            "processes of version {} ({}) would misunderstand this one (docs/decisions/0034-compatibility.md):\n{}",
            record.version,
            record.revision,
            broken.join("\n")
        );
    }
    Ok(())
}

/// Nobody has changed a record afterwards so that a break would not show.
#[test]
fn a_record_is_the_proto_of_its_commit() -> Result<()> {
    for record in records()? {
        if previous::resolve(&record.revision).is_err() {
            skip(&format!("comparing the record of {} with its commit", record.version), Lack::History)?;
            continue;
        }
        let folder = tempfile::tempdir()?;
        previous::extract(&record.revision, &["proto"], folder.path())?;
        ensure!(
            Api::from_folder(&folder.path().join("proto"))? == record.api,
            "the record of {} is not what {} says",
            record.version,
            record.revision
        );
    }
    Ok(())
}

/// What is served by reflection is what the files say: the record is made of the files.
#[test]
fn a_record_is_what_is_served() -> Result<()> {
    let files = Api::from_folder(&workspace_root().join("proto"))?;
    assert!(
        files == Api::from_descriptors(bulkhead_ipc::DESCRIPTORS)?,
        "a proto file is missing in shared/ipc/build.rs"
    );
    let record = Record { version: "9.9.9".into(), revision: "none".into(), api: files };
    assert_eq!(Record::from_text(&record.to_text())?, record);
    Ok(())
}

/// An old world, with one of everything.
const OLD: &str = r#"
syntax = "proto3";
package kubelet.old.v1;
service Pods {
  rpc List(Ask) returns (stream Pod);
  rpc Get(Ask) returns (Pod);
}
message Ask { string uid = 1; reserved 2, 7 to 9; reserved "name"; }
message Pod {
  enum Phase { PHASE_UNSPECIFIED = 0; PHASE_RUNNING = 1; PHASE_ENDED = 2; reserved 5; }
  string uid = 1;
  optional uint64 memory = 2;
  repeated string ips = 3;
  map<string, bytes> files = 4;
  oneof end { string message = 5; int32 code = 6; }
  Phase phase = 7;
}
"#;

/// What stands in the old world, what is to stand there, and each break: where, which rule, a word of how it is told.
type Case = (&'static str, &'static str, &'static [(&'static str, Rule, &'static str)]);

fn compile(text: &str) -> Result<Api> {
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("old.proto"), text)?;
    Api::from_folder(folder.path())
}

#[test]
fn incompatible_changes_are_named_and_additions_are_not() -> Result<()> {
    let old = compile(OLD)?;
    let cases: &[Case] = &[
        ("string uid = 1;\n", "string uid = 1; string host = 10; Ask ask = 11;\n", &[]),
        ("PHASE_ENDED = 2;", "PHASE_ENDED = 2; PHASE_LOST = 3;", &[]),
        ("rpc Get(Ask)", "rpc Watch(stream Ask) returns (stream Pod); rpc Get(Ask)", &[]),
        (
            "message Ask",
            "message More { string x = 1; } service Others { rpc Get(More) returns (More); } message Ask",
            &[],
        ),
        ("reserved 2, 7 to 9;", "reserved 2 to 9;", &[]),
        ("  repeated string ips = 3;", "", &[("Pod.ips", Rule::FieldGone, "not there")]),
        ("  repeated string ips = 3;", "reserved 3; reserved \"ips\";", &[("Pod.ips", Rule::FieldGone, "not there")]),
        ("string ips = 3;", "string ips = 12;", &[("Pod.ips", Rule::FieldRenumbered, "3 has become 12")]),
        ("string ips = 3;", "string addresses = 3;", &[("Pod.ips", Rule::FieldRenamed, "addresses")]),
        ("repeated string ips = 3;", "bytes other = 3;", &[("Pod.ips", Rule::NumberReused, "repeated")]),
        ("optional uint64 memory", "optional int64 memory", &[("Pod.memory", Rule::FieldRetyped, "int64")]),
        ("optional uint64 memory", "uint64 memory", &[("Pod.memory", Rule::CardinalityChanged, "one")]),
        ("repeated string ips", "string ips", &[("Pod.ips", Rule::CardinalityChanged, "repeated has become one")]),
        ("map<string, bytes>", "map<string, string>", &[("Pod.files", Rule::FieldRetyped, "map<string,string>")]),
        ("string ips = 3;", "string ips = 3 [json_name=\"addr\"];", &[("Pod.ips", Rule::JsonRenamed, "addr")]),
        (
            "oneof end { string message = 5;",
            "string message = 5; oneof end {",
            &[("Pod.message", Rule::OneofChanged, "end has become none")],
        ),
        (
            "string uid = 1; reserved 2,",
            "string uid = 1; string x = 2; reserved",
            &[("Ask.x", Rule::NumberReused, "2")],
        ),
        (
            "reserved \"name\";",
            "string name = 20;",
            &[("Ask", Rule::ReservationGone, "name"), ("Ask.name", Rule::NameReused, "reserved")],
        ),
        ("reserved 2, 7 to 9;", "reserved 2, 7 to 8;", &[("Ask", Rule::ReservationGone, "7 to 9")]),
        ("PHASE_ENDED = 2;", "", &[("Pod.Phase.PHASE_ENDED", Rule::ValueGone, "not there")]),
        ("PHASE_ENDED = 2;", "PHASE_ENDED = 4;", &[("Pod.Phase.PHASE_ENDED", Rule::ValueRenumbered, "2 has become 4")]),
        (
            "PHASE_ENDED = 2;",
            "PHASE_OVER = 2;",
            &[
                ("Pod.Phase.PHASE_ENDED", Rule::ValueGone, "not there"),
                ("Pod.Phase.PHASE_OVER", Rule::NumberReused, "PHASE_ENDED"),
            ],
        ),
        ("reserved 5;", "PHASE_NEW = 5;", &[("Pod.Phase.PHASE_NEW", Rule::NumberReused, "reserved")]),
        ("  rpc Get(Ask) returns (Pod);", "", &[("Pods/Get", Rule::MethodGone, "not there")]),
        ("Get(Ask) returns (Pod)", "Get(Ask) returns (Ask)", &[("Pods/Get", Rule::MethodRetyped, "Ask")]),
        (
            "returns (stream Pod)",
            "returns (Pod)",
            &[("Pods/List", Rule::StreamingChanged, "one to a stream has become")],
        ),
        ("Get(Ask)", "Get(stream Ask)", &[("Pods/Get", Rule::StreamingChanged, "a stream to one")]),
        ("service Pods", "service PodsTwo", &[("Pods", Rule::ServiceGone, "not there")]),
        ("package kubelet.old.v1;", "package kubelet.old.v2;", &[("", Rule::PackageGone, "name")]),
    ];
    for (find, replace, expected) in cases {
        ensure!(OLD.matches(find).count() == 1, "{find:?} must stand once in the old world");
        let new = compile(&OLD.replacen(find, replace, 1)).with_context(|| format!("{find:?} -> {replace:?}"))?;
        let found = breaks(&old, &new);
        let told: Vec<String> = found.iter().map(ToString::to_string).collect();
        ensure!(found.len() == expected.len(), "{find:?} -> {replace:?}: {told:?}");
        for (found, (at, rule, word)) in found.iter().zip(*expected) {
            let at = if at.is_empty() { "kubelet.old.v1".into() } else { format!("kubelet.old.v1.{at}") };
            ensure!(
                found.at == at && found.rule == *rule && found.what.contains(word),
                "{find:?} -> {replace:?}: {found} instead of {at}, {rule:?}, {word:?}"
            );
        }
    }
    Ok(())
}

/// Renaming a message of the real API is told with the message and with what used it.
#[test]
fn the_real_files_are_guarded() -> Result<()> {
    let old = Api::from_descriptors(bulkhead_ipc::DESCRIPTORS)?;
    let folder = tempfile::tempdir()?;
    copy(&workspace_root().join("proto/kubelet"), &folder.path().join("kubelet"))?;
    let file = folder.path().join("kubelet/common/v1/common.proto");
    let text = std::fs::read_to_string(&file)?;
    std::fs::write(&file, text.replace("fixed64 volnetd_epoch = 1", "fixed64 volnetd_epoch = 9"))?;
    let found = breaks(&old, &Api::from_folder(folder.path())?);
    let told: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(told, ["kubelet.common.v1.DestructiveGuard.volnetd_epoch: a field keeps its number: 1 has become 9"]);
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
