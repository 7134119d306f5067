//! The threads of a session, from their start to their end.
//!
//! Each thread starts before the kernel may send requests, and then waits on a channel for an
//! `Order`. So if a thread cannot be started, the mount fails, and no request waits for a missing
//! thread. If the `Crew` is dropped without an order, its threads end.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};

use corewalk::Errno;
use corewalk_base::primitives::thread::JoinHandle;

use super::uring::Registered;
use super::{Transport, device, spawn, system, uring};
use crate::mount::MountError;

#[derive(Debug, Default)]
pub(super) struct Crew {
    threads: Vec<JoinHandle<io::Result<()>>>,
    orders: Vec<Sender<Order>>,
    reports: Vec<Receiver<Registered>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// A thread without a ring does nothing.
    Register,
    Serve(Transport),
}

impl Crew {
    /// Adds a thread that serves a ring. If the kernel does not use the ring, or when the ring has
    /// ended, the thread reads the FUSE device.
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

    pub(super) fn add_reader(&mut self, reader: device::Thread) -> Result<(), MountError> {
        self.add(move |orders| {
            while let Ok(order) = orders.recv() {
                match order {
                    Order::Register => {}
                    Order::Serve(Transport::Uring) => return reader.run_beside_rings(),
                    Order::Serve(_) => return reader.run(),
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

    /// Registers all rings with the kernel. If the kernel refuses a ring, it sends all requests to
    /// the FUSE device. Then the method returns the error of the first refused ring.
    ///
    /// # Errors
    /// If a system call fails, the kernel delivers no requests: it waits until each of its queues
    /// has a registered entry.
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

    /// Makes all threads serve requests. Returns a thread that waits for their end.
    ///
    /// # Errors
    /// A [`MountError`] if the waiting thread cannot be started.
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
            // Ignore an error: if the thread has ended, `register` reports that.
            let _ = order.send(what);
        }
    }
}
