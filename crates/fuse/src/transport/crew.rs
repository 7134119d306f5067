//! The threads of a session, from their start to their end.
//!
//! Each thread starts before the kernel may send requests, and waits for an order. So if a thread
//! cannot be started, the mount fails, and no request waits for a thread that does not exist. If
//! the crew is dropped without an order, the threads end.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};

use corewalk::Errno;
use corewalk_base::primitives::thread::JoinHandle;

use super::uring::Registered;
use super::{Transport, device, spawn, system, uring};
use crate::mount::MountError;

/// The threads of a session.
#[derive(Debug, Default)]
pub(super) struct Crew {
    threads: Vec<JoinHandle<io::Result<()>>>,
    orders: Vec<Sender<Order>>,
    /// One receiver for each thread with a ring, for the result of `Order::Register`.
    reports: Vec<Receiver<Registered>>,
}

/// An order to a thread that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// Register the entries of the ring. Threads without a ring do nothing.
    Register,
    /// Serve requests, and use the ring if the transport is io_uring.
    Serve(Transport),
}

impl Crew {
    /// Starts a thread that serves a ring. `successor` serves the device after the ring has ended,
    /// or if the ring is not used.
    ///
    /// # Errors
    /// A [`MountError`] if the thread cannot be started.
    pub(super) fn add_ring(
        &mut self,
        queues: uring::Queues,
        successor: device::Thread,
    ) -> Result<(), MountError> {
        let (report, reports) = channel();
        let mut ring = uring::Thread::new(queues, successor);
        self.add(move |orders| {
            while let Ok(order) = orders.recv() {
                match order {
                    Order::Register => {
                        let _ = report.send(ring.register());
                    }
                    Order::Serve(Transport::Uring) => return ring.run(),
                    Order::Serve(_) => return ring.into_successor().run(),
                }
            }
            Ok(())
        })?;
        self.reports.push(reports);
        Ok(())
    }

    /// Starts a thread that serves the device.
    ///
    /// # Errors
    /// As [`Crew::add_ring`].
    pub(super) fn add_reader(&mut self, reader: device::Thread) -> Result<(), MountError> {
        self.add(move |orders| {
            while let Ok(order) = orders.recv() {
                if order != Order::Register {
                    return reader.run();
                }
            }
            Ok(())
        })
    }

    fn add(
        &mut self,
        run: impl FnOnce(Receiver<Order>) -> io::Result<()> + Send + 'static,
    ) -> Result<(), MountError> {
        let (order, orders) = channel();
        let thread = spawn(move || run(orders));
        self.threads.push(thread.map_err(|error| system("starting a thread", error))?);
        self.orders.push(order);
        Ok(())
    }

    /// Registers the entries of all rings with the kernel. Returns the error of the first refused
    /// ring, if there is one. In that case the kernel sends all requests to the device.
    ///
    /// # Errors
    /// The first error of a system call. Then the kernel delivers no requests, because it still
    /// waits for entries.
    pub(super) fn register(&mut self) -> Result<Option<Errno>, Errno> {
        self.order(Order::Register);
        let mut refused = None;
        for report in &self.reports {
            match report.recv().unwrap_or(Registered::Failed(Errno::IO)) {
                Registered::Done => {}
                Registered::Refused(error) => refused = refused.or(Some(error)),
                Registered::Failed(error) => return Err(error),
            }
        }
        Ok(refused)
    }

    /// Lets all threads serve requests. The returned thread ends when all others have ended.
    ///
    /// # Errors
    /// A [`MountError`] if that thread cannot be started.
    pub(super) fn serve(
        self,
        transport: Transport,
    ) -> Result<JoinHandle<io::Result<()>>, MountError> {
        let Crew { threads, orders, .. } = self;
        let joining = spawn(move || {
            let ends: Vec<_> = threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| Err(Errno::IO.into())))
                .collect();
            ends.into_iter().collect()
        });
        let joining = joining.map_err(|error| system("starting a thread", error))?;
        for order in &orders {
            let _ = order.send(Order::Serve(transport));
        }
        Ok(joining)
    }

    fn order(&self, what: Order) {
        for order in &self.orders {
            // Ignore an error: a thread that has ended is noticed by its missing report.
            let _ = order.send(what);
        }
    }
}
