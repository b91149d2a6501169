//! Writes the record of a released version: `cargo xtask record-api`.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use bulkhead_tests::api_record::{Api, Record};
use clap::{Arg, Command};

fn main() -> Result<()> {
    let path = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).required(true).value_parser(clap::value_parser!(PathBuf)).help(help)
    };
    let text = |name: &'static str, help: &'static str| Arg::new(name).long(name).required(true).help(help);
    let matches = Command::new("record-api")
        .arg(path("proto", "Folder with the released version's proto files"))
        .arg(path("into", "Folder of the records"))
        .arg(text("version", "The released version, as Hello tells it"))
        .arg(text("revision", "The commit that is recorded"))
        .get_matches();
    let path = |name: &str| matches.get_one::<PathBuf>(name).cloned().unwrap_or_default();
    let text = |name: &str| matches.get_one::<String>(name).cloned().unwrap_or_default();

    let record =
        Record { version: text("version"), revision: text("revision"), api: Api::from_folder(&path("proto"))? };
    let file = path("into").join(format!("{}.txt", record.version));
    if let Ok(existing) = std::fs::read_to_string(&file) {
        let existing = Record::from_text(&existing).with_context(|| file.display().to_string())?;
        if existing.api != record.api {
            bail!(
                "{} is the record of {}, and the API is another one now: raise the version, a record is never changed",
                file.display(),
                existing.revision
            );
        }
        println!("{} says the same already", file.display());
        return Ok(());
    }
    std::fs::write(&file, record.to_text()).with_context(|| file.display().to_string())?;
    println!(
        "{}: {} messages, {} enums, {} services",
        file.display(),
        record.api.messages.len(),
        record.api.enums.len(),
        record.api.services.len()
    );
    Ok(())
}
