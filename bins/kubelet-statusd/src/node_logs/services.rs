//! Logs of services: from the journal where it has any of the service, else from the file that is most likely the service's
//! (upstream `pkg/kubelet/kubelet_server_journal.go`). What goes wrong after the answer has begun is said in its text.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_ipc::broker::BrokerClient;
use bulkhead_ipc::common::JournalQuery;
use bulkhead_ipc::helper::Asker;
use bytes::{Bytes, BytesMut};
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::{Stream, StreamExt as _, stream};
use http::{HeaderMap, HeaderValue, header};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::time::Instant;

use super::opened::{self, NotOpened, Opened};
use super::pieces;
use super::query::{Options, Query};
use crate::server::answer::{self, Answer, BoxError};

/// Upstream's, for all of one answer.
const DEADLINE: Duration = Duration::from_secs(30);
const PIECE_BYTES: usize = 64 << 10;
/// Of the list of units; a name has 256 bytes at most.
const UNITS_BYTES_MAX: usize = 8 << 20;

/// Answers a checked query for services.
pub async fn serve(broker: &BrokerClient, journal: &Asker, query: &Query, headers: &HeaderMap) -> Answer {
    let until = Instant::now() + DEADLINE;
    let (native, files) = split(&query.services, journal, until).await;
    let mut steps = VecDeque::new();
    if !native.is_empty() {
        steps.push_back(Step::Journal(question(native, &query.options)));
    }
    if !files.is_empty() && query.options != Options::default() {
        steps.push_back(Step::Text(format!(
            "\noptions present and query resolved to log files for [{}]\ntry without specifying options\n",
            files.join(" ")
        )));
    } else {
        steps.extend(files.into_iter().map(Step::LikelyFile));
    }
    let pieces = stream::unfold(
        Work { broker: broker.clone(), journal: journal.clone(), until, steps },
        |mut work| async move {
            let piece = work.next().await?;
            Some((Ok::<_, BoxError>(piece), work))
        },
    );
    let zipped = headers.get(header::ACCEPT_ENCODING).is_some_and(|accepted| accepted == "gzip");
    let mut answer = if zipped { answer::stream(zip(pieces)) } else { answer::stream(pieces) };
    let set = answer.headers_mut();
    set.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain;charset=UTF-8"));
    if zipped {
        set.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    answer
}

fn question(units: Vec<String>, options: &Options) -> JournalQuery {
    JournalQuery {
        list_units: false,
        units,
        since: options.since,
        until: options.until.as_ref().map(|(seconds, _)| *seconds),
        lines: options.tail_lines.and_then(|lines| u32::try_from(lines).ok()),
        boot: options.boot.map(|boot| i32::try_from(boot).unwrap_or(i32::MIN)),
        pattern: options.pattern.clone(),
    }
}

/// Services that the journal has lines of, and the others.
async fn split(services: &[String], reader: &Asker, until: Instant) -> (Vec<String>, Vec<String>) {
    let units = match tokio::time::timeout_at(until, units(reader)).await {
        Ok(Ok(units)) => units,
        Ok(Err(error)) => {
            tracing::debug!(error, "the journal's units are not known");
            String::new()
        }
        Err(_) => String::new(),
    };
    // As upstream: the name may be the end of another.
    services.iter().cloned().partition(|service| units.contains(&format!("{service}.service")))
}

async fn units(reader: &Asker) -> Result<String, String> {
    if !reader.is_there() {
        return Ok(String::new());
    }
    let query = JournalQuery { list_units: true, ..JournalQuery::default() };
    let pipe = reader.ask(&query).await.map_err(|error| error.to_string())?;
    let mut text = Vec::new();
    pipe.take(UNITS_BYTES_MAX as u64).read_to_end(&mut text).await.map_err(|error| error.to_string())?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

enum Step {
    Text(String),
    Journal(JournalQuery),
    LikelyFile(String),
    Pipe(pipe::Receiver),
    /// From a place on, up to the size that it had.
    File(Arc<File>, u64, u64),
}

struct Work {
    broker: BrokerClient,
    journal: Asker,
    until: Instant,
    steps: VecDeque<Step>,
}

impl Work {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let step = self.steps.pop_front()?;
            match tokio::time::timeout_at(self.until, self.take(step)).await {
                Ok(Some(piece)) => return Some(piece),
                Ok(None) => {}
                Err(_) => {
                    self.steps.clear();
                    return Some("\ncontext error: context deadline exceeded\n".into());
                }
            }
        }
    }

    /// One step further; `None`: nothing came of it.
    async fn take(&mut self, step: Step) -> Option<Bytes> {
        match step {
            Step::Text(text) => Some(text.into()),
            Step::Journal(question) => match self.journal.ask(&question).await {
                Ok(pipe) => {
                    self.steps.push_front(Step::Pipe(pipe));
                    None
                }
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "failed to read the journal");
                    Some("\nerror: journal output not available\n".into())
                }
            },
            Step::Pipe(mut pipe) => {
                // Made when there is something to read: nobody holds a buffer while journalctl searches.
                if let Err(error) = pipe.readable().await {
                    return Some(format!("\nerror: {error}\n").into());
                }
                let mut piece = BytesMut::with_capacity(PIECE_BYTES);
                match pipe.read_buf(&mut piece).await {
                    Ok(0) => None,
                    Ok(_) => {
                        self.steps.push_front(Step::Pipe(pipe));
                        Some(piece.freeze())
                    }
                    Err(error) => Some(format!("\nerror: {error}\n").into()),
                }
            }
            Step::LikelyFile(service) => match likely_file(&self.broker, &service).await {
                Ok((file, size)) => {
                    self.steps.push_front(Step::File(file, 0, size));
                    None
                }
                Err(NotOpened::Missing) => Some(format!("\nlog not found for {service}\n").into()),
                Err(error) => Some(format!("\nerror getting log for {service}: {error}\n").into()),
            },
            Step::File(_, at, size) if at >= size => None,
            Step::File(file, at, size) => {
                let length = usize::try_from(size - at).unwrap_or(usize::MAX).min(PIECE_BYTES);
                match pieces::read(file.clone(), at, length).await {
                    Ok(piece) if piece.is_empty() => None,
                    Ok(piece) => {
                        self.steps.push_front(Step::File(file, at + piece.len() as u64, size));
                        Some(piece)
                    }
                    Err(error) => Some(format!("\nerror: {error}\n").into()),
                }
            }
        }
    }
}

/// The first of the three files that there is; a directory is none.
async fn likely_file(broker: &BrokerClient, service: &str) -> Result<(Arc<File>, u64), NotOpened> {
    for name in [service.to_owned(), format!("{service}.log"), format!("{service}/{service}.log")] {
        match opened::open(broker, &name).await {
            Ok(Opened::File { file, size, .. }) => return Ok((Arc::new(file), size)),
            Ok(Opened::Directory { .. }) | Err(NotOpened::Missing) => {}
            Err(error) => return Err(error),
        }
    }
    Err(NotOpened::Missing)
}

/// The pieces as one gzip stream.
fn zip<S>(pieces: S) -> impl Stream<Item = Result<Bytes, BoxError>> + Send + 'static
where
    S: Stream<Item = Result<Bytes, BoxError>> + Send + 'static,
{
    let encoder = Some(GzEncoder::new(Vec::new(), Compression::fast()));
    stream::unfold((Box::pin(pieces), encoder), |(mut pieces, encoder)| async move {
        let mut encoder = encoder?;
        loop {
            match pieces.next().await {
                Some(Ok(piece)) => {
                    if let Err(error) = encoder.write_all(&piece) {
                        return Some((Err(error.into()), (pieces, None)));
                    }
                    let ready = std::mem::take(encoder.get_mut());
                    if !ready.is_empty() {
                        return Some((Ok(ready.into()), (pieces, Some(encoder))));
                    }
                }
                Some(Err(error)) => return Some((Err(error), (pieces, None))),
                None => {
                    let last = encoder.finish().map(Bytes::from).map_err(BoxError::from);
                    return Some((last, (pieces, None)));
                }
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[tokio::test]
    async fn zipped_pieces_are_one_stream() {
        let text: Vec<u8> = (0..300_000_u32).map(|i| (i.wrapping_mul(i) % 255) as u8).collect();
        let chunks: Vec<Bytes> = text.chunks(10_000).map(Bytes::copy_from_slice).collect();
        let mut zipped = Vec::new();
        let mut pieces = std::pin::pin!(zip(stream::iter(chunks.into_iter().map(Ok))));
        while let Some(piece) = pieces.next().await {
            zipped.extend_from_slice(&piece.unwrap());
        }
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(&zipped[..]).read_to_end(&mut plain).unwrap();
        assert_eq!(plain, text);
    }

    #[test]
    fn what_the_journal_is_asked() {
        let query =
            "query=a&sinceTime=2023-01-04T02:00:00Z&untilTime=2023-01-05T02:00:00Z&tailLines=7&boot=-1&pattern=x";
        let options = Query::parse(query).unwrap().unwrap().options;
        let asked = question(vec!["a".into()], &options);
        assert_eq!((asked.since, asked.until), (Some(1_672_797_600), Some(1_672_884_000)));
        assert_eq!(
            (asked.lines, asked.boot, asked.pattern.as_str(), asked.list_units),
            (Some(7), Some(-1), "x", false)
        );
        let far = Options { boot: Some(i64::MIN), ..Options::default() };
        assert_eq!(question(vec![], &far).boot, Some(i32::MIN));
    }
}
