//! How kubelet-syncd is asked: each question has an end, and so has each list.

use std::future::Future;
use std::time::Duration;

use futures_util::{Stream, TryStreamExt as _};
use tonic::Status;

/// The answer, where it comes within the deadline.
///
/// # Errors
/// That of the call, or `DeadlineExceeded`: kubelet-syncd does not answer.
pub async fn in_time<T>(deadline: Duration, call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let late = |_| Status::deadline_exceeded("kubelet-syncd does not answer");
    tokio::time::timeout(deadline, call).await.map_err(late)?
}

/// Takes each of a list's items, `most` of them; the rest of a longer list is cut, which is said in the log. `what`: what it lists.
///
/// # Errors
/// The list broke off.
pub async fn each_at_most<T>(
    mut list: impl Stream<Item = Result<T, Status>> + Unpin,
    most: usize,
    what: &str,
    mut take: impl FnMut(T),
) -> Result<(), Status> {
    let mut count = 0;
    while let Some(item) = list.try_next().await? {
        if count == most {
            tracing::warn!(most, "list of {what} is cut");
            break;
        }
        count += 1;
        take(item);
    }
    Ok(())
}

/// The items of a list, as [`each_at_most`].
///
/// # Errors
/// As there.
pub async fn collect_at_most<T>(
    list: impl Stream<Item = Result<T, Status>> + Unpin,
    most: usize,
    what: &str,
) -> Result<Vec<T>, Status> {
    let mut all = Vec::new();
    each_at_most(list, most, what, |item| all.push(item)).await?;
    Ok(all)
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    #[tokio::test]
    async fn a_list_is_cut_where_it_is_too_long_and_none_where_it_breaks_off() {
        let broken = || Err(Status::unavailable("away"));
        for (list, expected) in [
            (vec![], Ok(vec![])),
            (vec![Ok(1), Ok(2)], Ok(vec![1, 2])),
            (vec![Ok(1), Ok(2), Ok(3), broken()], Ok(vec![1, 2])),
            (vec![Ok(1), broken()], Err(tonic::Code::Unavailable)),
        ] {
            let listed = format!("{list:?}");
            let collected = collect_at_most(stream::iter(list), 2, "numbers").await;
            assert_eq!(collected.map_err(|status| status.code()), expected, "{listed}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_answer_is_late() {
        let late = in_time(Duration::from_secs(5), std::future::pending::<Result<(), Status>>()).await;
        assert_eq!(late.unwrap_err().code(), tonic::Code::DeadlineExceeded);
        assert_eq!(in_time(Duration::from_secs(5), std::future::ready(Ok(1))).await.unwrap(), 1);
    }
}
