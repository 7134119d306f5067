//! Serving requests that arrive over the FUSE device.
//!
//! Each thread has a channel: a clone of the mounted FUSE device. The kernel gives each request to
//! one channel, and accepts the answer only on that channel. If this user may not open `/dev/fuse`,
//! all threads share the mounted device.
//!
//! # Forgets of a mount with io_uring
//! If requests arrive over io_uring, the device delivers only forgets and interrupts. A thread that
//! reads each forget immediately is woken by each unlink(2), and takes the client's processor. So
//! the thread pauses for a quarter of a millisecond after a forget ([`Thread::run_beside_rings`]).
//! Meanwhile the kernel collects further forgets, and delivers them in one message
//! (`FUSE_BATCH_FORGET`). An interrupt may wait for that time.
//!
//! A longer pause would keep removed inodes for longer. Until its forget, a removed inode holds the
//! space of its file, and a back end may hold a descriptor for it.
//!
//! Source: Linux `fs/fuse/dev.c` (`fuse_dev_do_read`, `fuse_dev_do_write`).

use std::fs::File;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::{Duration, Instant};

use corewalk::Errno;
use corewalk_base::primitives::thread;

use super::MESSAGE_BYTES;
use crate::service::{Dispatch, Outcome};
use crate::wire::{Features, Message, OUT_HEADER_BYTES, Opcode, out_header};

/// The pause after a forget, if requests arrive over io_uring.
const FORGETS_PAUSE: Duration = Duration::from_micros(250);

#[derive(Debug)]
pub(super) struct Thread {
    dispatcher: Arc<dyn Dispatch>,
    features: Features,
    checks_delivery: bool,
    channel: Arc<File>,
}

impl Thread {
    pub(super) fn new(dispatcher: Arc<dyn Dispatch>, channel: File) -> Thread {
        let (features, checks_delivery) = (dispatcher.features(), dispatcher.checks_delivery());
        Thread { dispatcher, features, checks_delivery, channel: Arc::new(channel) }
    }

    pub(super) fn dispatcher(&self) -> &Arc<dyn Dispatch> {
        &self.dispatcher
    }

    /// Reads requests and serves them until the mount has ended.
    ///
    /// # Errors
    /// `ECONNABORTED` if the connection was aborted; other errors of read(2).
    pub(super) fn run(self) -> io::Result<()> {
        self.run_with(|_| ())
    }

    /// As [`run`](Self::run), but pauses after each forget ([`FORGETS_PAUSE`]). For a mount whose
    /// requests arrive over io_uring.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub(super) fn run_beside_rings(self) -> io::Result<()> {
        self.run_with(|opcode| {
            if is_forget(opcode) {
                thread::sleep(FORGETS_PAUSE);
            }
        })
    }

    /// Reads and serves messages until the mount has ended. Passes the operation of each message to
    /// `after`.
    fn run_with(self, after: impl Fn(Opcode)) -> io::Result<()> {
        let payload_bytes = self.dispatcher.payload_bytes();
        let mut request = vec![0; MESSAGE_BYTES + payload_bytes];
        let mut answer = vec![0; OUT_HEADER_BYTES + payload_bytes];
        loop {
            match rustix::io::read(&self.channel, &mut request) {
                // An empty message ends the loop. The FUSE device never delivers one, but the
                // socket of the tests does so when its other end is closed.
                Ok(0) | Err(Errno::NODEV) => return Ok(()),
                Ok(len) => {
                    if let Some(opcode) = self.serve(&request[..len], &mut answer) {
                        after(opcode);
                    }
                }
                // `ENOENT` means that the request was cancelled before this thread could read it.
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Serves a request, and returns its operation, or `None` if it is malformed.
    fn serve(&self, request: &[u8], answer: &mut [u8]) -> Option<Opcode> {
        let message = match Message::parse(request, self.features) {
            Ok(message) => message,
            Err(unique) => {
                log::error!("the kernel has sent a malformed request");
                if let Some(unique) = unique {
                    send(&self.channel, [&out_header(unique, Some(Errno::IO), 0)]);
                }
                return None;
            }
        };
        let unique = message.header.unique;
        let begun = self.checks_delivery.then(Instant::now);
        match self.dispatcher.serve(&message, &mut answer[OUT_HEADER_BYTES..]) {
            Outcome::Answer(result) => {
                let (error, len) = (result.err(), result.unwrap_or(0));
                answer[..OUT_HEADER_BYTES].copy_from_slice(&out_header(unique, error, len));
                send(&self.channel, [&answer[..OUT_HEADER_BYTES + len]]);
                if let Some(begun) = begun {
                    let body = &answer[OUT_HEADER_BYTES..OUT_HEADER_BYTES + len];
                    self.dispatcher.delivered(&message, body, begun);
                }
            }
            Outcome::Silent => {}
            Outcome::Later => {
                let channel = Arc::clone(&self.channel);
                let reply = move |result: Result<&[u8], Errno>| {
                    let body = result.unwrap_or(&[]);
                    let header = out_header(unique, result.err(), body.len());
                    send(&channel, [&header, body]);
                };
                self.dispatcher.serve_later(message.to_owned(), Box::new(reply));
            }
        }
        Some(message.header.opcode)
    }
}

fn is_forget(opcode: Opcode) -> bool {
    [Opcode::FORGET, Opcode::BATCH_FORGET].contains(&opcode)
}

/// Sends an answer to the FUSE device. An error means that the connection has ended. The request
/// and all lookups that the kernel holds have ended too, so it is enough to log the error.
fn send<const N: usize>(channel: &File, parts: [&[u8]; N]) {
    let parts = parts.map(IoSlice::new);
    if let Err(error) = rustix::io::retry_on_intr(|| rustix::io::writev(channel, &parts)) {
        log::debug!("an answer was not delivered: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_comes_after_forgets_and_not_after_interrupts() {
        assert!(is_forget(Opcode::FORGET) && is_forget(Opcode::BATCH_FORGET));
        assert!(!is_forget(Opcode::INTERRUPT) && !is_forget(Opcode::LOOKUP));
    }
}
