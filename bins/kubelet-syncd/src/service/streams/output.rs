//! What a command has written, in messages of a size that the internal sockets take.

use bulkhead_cri::v1;
use bulkhead_ipc::syncd as api;
use bulkhead_ipc::syncd::run_part::Part;

/// Of one message, bytes; what `RunPart` says.
const PIECE: usize = 64 << 10;

/// The exit code, then stdout, then stderr. Each piece is cut off when it is asked for, so what has been sent is held
/// once and not twice.
pub fn parts(reply: v1::ExecSyncResponse) -> impl Iterator<Item = api::RunPart> {
    let exit_code = std::iter::once(Part::ExitCode(reply.exit_code));
    let stdout = pieces(reply.stdout).map(Part::Stdout);
    let stderr = pieces(reply.stderr).map(Part::Stderr);
    exit_code.chain(stdout).chain(stderr).map(|part| api::RunPart { part: Some(part) })
}

fn pieces(output: Vec<u8>) -> impl Iterator<Item = Vec<u8>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = output.get(at..).filter(|rest| !rest.is_empty())?;
        let piece = rest[..rest.len().min(PIECE)].to_vec();
        at += piece.len();
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn nothing_is_lost_and_no_message_is_too_large(stdout in 0..200_000_usize, stderr in 0..200_000_usize) {
            let bytes = |length: usize| (0..length).map(|i| (i % 251) as u8).collect::<Vec<u8>>();
            let reply = v1::ExecSyncResponse { stdout: bytes(stdout), stderr: bytes(stderr), exit_code: 3 };
            let (mut out, mut err, mut code) = (Vec::new(), Vec::new(), None);
            for part in parts(reply.clone()) {
                match part.part {
                    Some(Part::ExitCode(seen)) => {
                        prop_assert!(code.is_none() && out.is_empty());
                        code = Some(seen);
                    }
                    Some(Part::Stdout(piece)) => {
                        prop_assert!(piece.len() <= PIECE && err.is_empty());
                        out.extend(piece);
                    }
                    Some(Part::Stderr(piece)) => {
                        prop_assert!(piece.len() <= PIECE);
                        err.extend(piece);
                    }
                    None => prop_assert!(false, "an empty part"),
                }
            }
            prop_assert_eq!((out, err, code), (reply.stdout, reply.stderr, Some(3)));
        }
    }
}
