//! Files as bodies of answers: read piece by piece, as fast as the client takes them. Between two pieces nothing is held
//! but the open file.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{Stream, stream};

use super::conditions::Range;
use crate::server::answer::BoxError;

/// Of one piece.
const PIECE_BYTES: usize = 64 << 10;

/// A part of a body.
#[derive(Debug, Clone)]
pub enum Segment {
    Text(String),
    Part(Range),
}

impl Segment {
    /// Bytes.
    pub fn length(&self) -> u64 {
        match self {
            Segment::Text(text) => text.len() as u64,
            Segment::Part(range) => range.length,
        }
    }
}

/// Reads up to `length` bytes from `at`, fewer at the end of the file.
pub async fn read(file: Arc<File>, at: u64, length: usize) -> io::Result<Bytes> {
    let work = tokio::task::spawn_blocking(move || {
        let mut buffer = vec![0; length];
        let mut filled = 0;
        while filled < length {
            match file.read_at(&mut buffer[filled..], at + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        buffer.truncate(filled);
        Ok(Bytes::from(buffer))
    });
    work.await.map_err(io::Error::other)?
}

/// Texts and parts of the file, one after the other. A file that has become shorter meanwhile breaks the body off: its
/// length has been told.
pub fn body(file: Arc<File>, segments: Vec<Segment>) -> impl Stream<Item = Result<Bytes, BoxError>> + Send + 'static {
    stream::unfold((file, VecDeque::from(segments)), |(file, mut segments)| async move {
        loop {
            match segments.pop_front()? {
                Segment::Text(text) => return Some((Ok(Bytes::from(text)), (file, segments))),
                Segment::Part(range) if range.length == 0 => {}
                Segment::Part(range) => {
                    let length = usize::try_from(range.length).unwrap_or(usize::MAX).min(PIECE_BYTES);
                    let piece = match read(file.clone(), range.start, length).await {
                        Ok(piece) if piece.is_empty() => Err("the file has become shorter".into()),
                        Ok(piece) => Ok(piece),
                        Err(error) => Err(BoxError::from(error)),
                    };
                    match &piece {
                        Ok(piece) => {
                            let read = piece.len() as u64;
                            let rest = Range { start: range.start + read, length: range.length - read };
                            segments.push_front(Segment::Part(rest));
                        }
                        Err(_) => segments.clear(),
                    }
                    return Some((piece, (file, segments)));
                }
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::StreamExt as _;

    async fn collect(file: &Arc<File>, segments: Vec<Segment>) -> Result<Vec<u8>, String> {
        let mut all = Vec::new();
        let mut body = std::pin::pin!(body(file.clone(), segments));
        while let Some(piece) = body.next().await {
            let piece = piece.map_err(|error| error.to_string())?;
            assert!(piece.len() <= PIECE_BYTES);
            all.extend_from_slice(&piece);
        }
        Ok(all)
    }

    #[tokio::test]
    async fn parts_come_in_order_and_with_the_announced_length() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let content: Vec<u8> = (0..200_000_u32).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &content).unwrap();
        let file = Arc::new(File::open(&path).unwrap());
        let part = |start, length| Segment::Part(Range { start, length });
        let got = collect(&file, vec![part(10, 5), Segment::Text("|".into()), part(0, 200_000)]).await.unwrap();
        assert_eq!(got, [&content[10..15], b"|", &content].concat());
        assert_eq!(collect(&file, vec![part(0, 0)]).await.unwrap(), b"");
        assert!(collect(&file, vec![part(199_999, 2)]).await.unwrap_err().contains("shorter"));
    }
}
