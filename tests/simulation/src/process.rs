//! A process of the node: a runtime of its own, whose tasks, connections and timers end with it. It gets turns; between turns it is as
//! a process that the kernel does not run.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bulkhead_simulation_kernel as kernel;
use tokio::runtime::{Builder, Handle, Runtime};

/// What a process came to in a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// It had something to do.
    pub moved: bool,
    /// Its work is over.
    pub ended: bool,
}

type Work = Pin<Box<dyn Future<Output = ()>>>;

/// See the module.
pub struct Process {
    runtime: Option<Runtime>,
    work: Work,
    ended: bool,
    /// On the heap, bytes.
    held: i64,
    /// What its runtime waits with. None: it has had no turn.
    epoll: Option<i32>,
    /// When it goes on by itself.
    until: Option<Duration>,
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Process").finish_non_exhaustive()
    }
}

impl Process {
    /// # Errors
    /// The kernel gives no descriptors.
    pub fn start(work: impl AsyncFnOnce() + 'static) -> Result<Self> {
        let before = kernel::held();
        // One thread for blocking work, which ends when there is none: see the kernel crate.
        let runtime = Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(1)
            .thread_keep_alive(Duration::ZERO)
            .build()
            .context("making a runtime")?;
        let work: Work = Box::pin(async move { work().await });
        let held = kernel::held() - before;
        Ok(Process { runtime: Some(runtime), work, ended: false, held, epoll: None, until: None })
    }

    /// What it has on the heap since it has begun, bytes.
    pub fn held(&self) -> u64 {
        u64::try_from(self.held).unwrap_or(0)
    }

    /// To begin something in it from outside.
    pub fn handle(&self) -> Option<Handle> {
        self.runtime.as_ref().map(|runtime| runtime.handle().clone())
    }

    /// Whether there is something for it to do.
    pub fn is_due(&self) -> bool {
        self.epoll.is_none_or(kernel::is_ready) || self.until.is_some_and(|until| until <= kernel::now())
    }

    /// When it goes on by itself. None: it waits for others.
    pub fn until(&self) -> Option<Duration> {
        self.until
    }

    /// Lets it run until it waits.
    pub fn turn(&mut self) -> Turn {
        let Process { runtime: Some(runtime), work, ended, held, epoll, until } = self else {
            return Turn { moved: false, ended: true };
        };
        kernel::take_idle();
        let (before, held_before) = (kernel::waits(), kernel::held());
        let idle = runtime.block_on(poll_fn(|context| {
            if let Some(idle) = kernel::take_idle() {
                return Poll::Ready(idle);
            }
            kernel::on_idle(context.waker().clone());
            if !*ended {
                *ended = work.as_mut().poll(context).is_ready();
            }
            Poll::Pending
        }));
        *held += kernel::held() - held_before;
        (*epoll, *until) = (Some(kernel::asked()), idle.until);
        Turn { moved: kernel::waits() > before + 1, ended: *ended }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // As a kill: tasks are dropped where they wait, and nothing is waited for.
        if let Some(runtime) = self.runtime.take() {
            {
                let _inside = runtime.enter();
                self.work = Box::pin(async {});
            }
            runtime.shutdown_background();
        }
    }
}
