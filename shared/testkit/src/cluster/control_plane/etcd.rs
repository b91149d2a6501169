//! An etcd by its JSON gateway: what it held at every revision, and what it is to hold.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Context as _, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::wait::SHORT;

/// Every key: from the empty one to the end.
const FIRST: &str = "AA==";
/// Outside of what an API server keeps: a change of it tells that a watch has seen everything before.
const MARK: &str = "/bulkhead-testkit";
/// etcd takes 128 operations in a transaction.
const OPERATIONS: usize = 100;
/// Far above what a test leaves behind.
const MAX_ANSWER: u64 = 256 << 20;

/// Keys with their values, both as they are stored.
pub(super) type Content = BTreeMap<String, Vec<u8>>;

/// One change.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Change {
    pub revision: u64,
    pub key: String,
    /// The new value, or that of a deleted key.
    pub value: Vec<u8>,
}

/// Where it listens.
#[derive(Debug, Clone, Copy)]
pub(super) struct Etcd(pub SocketAddr);

impl Etcd {
    /// HTTP/1.0: neither chunks nor connections that stay.
    fn ask(self, path: &str, question: &Value) -> Result<BufReader<TcpStream>> {
        let body = question.to_string();
        let mut stream =
            TcpStream::connect_timeout(&self.0, SHORT).with_context(|| format!("connecting to {}", self.0))?;
        stream.set_read_timeout(Some(SHORT))?;
        write!(stream, "POST {path} HTTP/1.0\r\nHost: {}\r\nContent-Length: {}\r\n\r\n{body}", self.0, body.len())?;
        let mut answer = BufReader::new(stream);
        let mut head = String::new();
        answer.read_line(&mut head)?;
        let refused = head.split_ascii_whitespace().nth(1) != Some("200");
        let mut line = String::new();
        while answer.read_line(&mut line)? > 2 {
            line.clear();
        }
        if refused {
            let mut body = String::new();
            answer.by_ref().take(1 << 16).read_to_string(&mut body)?;
            bail!("{}: {}", head.trim(), body.trim());
        }
        Ok(answer)
    }

    fn post(self, path: &str, question: &Value) -> Result<Value> {
        let what = || format!("etcd {path}");
        let answer = self.ask(path, question).with_context(what)?;
        serde_json::from_reader(answer.take(MAX_ANSWER)).with_context(what)
    }

    /// Everything that it holds, and its revision.
    pub(super) fn content(self) -> Result<(Content, u64)> {
        let answer = self.post("/v3/kv/range", &json!({"key": FIRST, "range_end": FIRST}))?;
        let mut content = Content::new();
        for one in answer["kvs"].as_array().into_iter().flatten() {
            let (key, value) = pair(one)?;
            content.insert(key, value);
        }
        Ok((content, number(&answer["header"]["revision"])?))
    }

    /// Stores values and removes keys (`None`).
    pub(super) fn change(self, changes: &[(String, Option<Vec<u8>>)]) -> Result<()> {
        for some in changes.chunks(OPERATIONS) {
            let operations: Vec<Value> = some
                .iter()
                .map(|(key, value)| match value {
                    Some(value) => {
                        json!({"request_put": {"key": STANDARD.encode(key), "value": STANDARD.encode(value)}})
                    }
                    None => json!({"request_delete_range": {"key": STANDARD.encode(key)}}),
                })
                .collect();
            self.post("/v3/kv/txn", &json!({"success": operations}))?;
        }
        Ok(())
    }

    /// Forgets what was before a revision.
    pub(super) fn compact(self, revision: u64) -> Result<()> {
        self.post("/v3/kv/compaction", &json!({"revision": revision.to_string()})).map(drop)
    }

    /// All changes after a revision until now, oldest first.
    pub(super) fn changes_after(self, revision: u64) -> Result<Vec<Change>> {
        let put = self.post("/v3/kv/put", &json!({"key": STANDARD.encode(MARK), "value": ""}))?;
        let until = number(&put["header"]["revision"])?;
        let start =
            json!({"key": FIRST, "range_end": FIRST, "start_revision": (revision + 1).to_string(), "prev_kv": true});
        let mut events = self.ask("/v3/watch", &json!({"create_request": start}))?.take(MAX_ANSWER);
        let mut changes = Vec::new();
        loop {
            let mut line = String::new();
            ensure!(events.read_line(&mut line).context("reading etcd's history")? > 0, "etcd's history ended early");
            let answer: Value = serde_json::from_str(&line).context("reading etcd's history")?;
            let result = &answer["result"];
            ensure!(answer["error"].is_null() && result["canceled"] != true, "etcd's history: {answer}");
            for event in result["events"].as_array().into_iter().flatten() {
                let at = number(&event["kv"]["mod_revision"])?;
                if at >= until {
                    return Ok(changes);
                }
                let (key, mut value) = pair(&event["kv"])?;
                if event["type"] == "DELETE" {
                    value = pair(&event["prev_kv"])?.1;
                }
                changes.push(Change { revision: at, key, value });
            }
        }
    }
}

fn number(value: &Value) -> Result<u64> {
    value.as_str().and_then(|text| text.parse().ok()).with_context(|| format!("etcd said {value} for a number"))
}

fn pair(value: &Value) -> Result<(String, Vec<u8>)> {
    let bytes = |field: &str| STANDARD.decode(value[field].as_str().unwrap_or_default());
    Ok((String::from_utf8(bytes("key")?)?, bytes("value")?))
}
