//! Mounts a directory of the host at a second place, read-only. The kernel may cache for a day,
//! because the program watches the host with inotify(7) and tells the kernel of each change.
//!
//! ```console
//! mkdir /tmp/watch; cargo run -p corewalk-fuse --example watch -- $HOME /tmp/watch
//! ```
//!
//! A back end with its own notifications of changes can work in the same way: a thread passes each
//! change to a [`KernelCache`]. The mount misses writes through mmap(2), because inotify(7) does
//! not report them.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{File, read_dir, symlink_metadata};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use corewalk::{Attr, ByPath, Errno, PathEntry, PathFileSystem, errno_of};
use corewalk_fuse::{EndSignals, KernelCache, Mount, MountOptions, Options};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};

pub(crate) struct Shown(pub(crate) PathBuf);

impl PathFileSystem for Shown {
    type File = File;

    fn getattr(&self, path: &Path) -> Result<Attr, Errno> {
        symlink_metadata(self.0.join(path)).map(|found| Attr::from(&found)).map_err(errno_of)
    }

    fn readdir(&self, path: &Path, sink: &mut dyn FnMut(PathEntry<'_>)) -> Result<(), Errno> {
        for entry in read_dir(self.0.join(path)).map_err(errno_of)?.flatten() {
            let kind = entry.file_type().map_err(errno_of)?.into();
            sink(PathEntry::new(&entry.file_name(), kind));
        }
        Ok(())
    }

    fn readlink(&self, path: &Path) -> Result<PathBuf, Errno> {
        std::fs::read_link(self.0.join(path)).map_err(errno_of)
    }

    fn open(&self, path: &Path, _flags: u32) -> Result<File, Errno> {
        File::open(self.0.join(path)).map_err(errno_of)
    }

    fn read(&self, _: &Path, file: &File, at: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let mut done = 0;
        while done < buf.len() {
            match file.read_at(&mut buf[done..], at + done as u64).map_err(errno_of)? {
                0 => break,
                count => done += count,
            }
        }
        Ok(done)
    }
}

pub(crate) struct Watch {
    inotify: OwnedFd,
    root: PathBuf,
    /// The path of each watched directory, relative to `root`, by its inotify(7) descriptor.
    directories: HashMap<i32, PathBuf>,
}

impl Watch {
    pub(crate) fn new(root: PathBuf) -> Result<Watch, Errno> {
        let inotify = inotify::init(CreateFlags::CLOEXEC)?;
        let mut watch = Watch { inotify, root, directories: HashMap::new() };
        watch.add(Path::new(""));
        Ok(watch)
    }

    fn add(&mut self, directory: &Path) {
        let no_changes = WatchFlags::ACCESS | WatchFlags::OPEN | WatchFlags::CLOSE;
        let flags = (WatchFlags::ALL_EVENTS - no_changes) | WatchFlags::ONLYDIR;
        let path = self.root.join(directory);
        match inotify::add_watch(&self.inotify, &path, flags) {
            Ok(number) => drop(self.directories.insert(number, directory.to_owned())),
            Err(error) => return eprintln!("cannot watch {}: {error}", path.display()),
        }
        for entry in read_dir(&path).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                self.add(&directory.join(entry.file_name()));
            }
        }
    }

    /// Reports changes on the host to the kernel, until reading the events of inotify(7) fails.
    pub(crate) fn report_to(mut self, kernel: &KernelCache) -> Result<(), Errno> {
        // One read of inotify(7) may return several events. `reader` keeps the other events for the
        // next calls, so use the same reader for all events.
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let inotify = self.inotify.try_clone().map_err(errno_of)?;
        let mut reader = Reader::new(inotify, &mut buffer);
        loop {
            let event = reader.next()?;
            let what = event.events();
            if what.contains(ReadFlags::QUEUE_OVERFLOW) {
                // inotify(7) has lost events, so any name may have changed. Linux before 6.16
                // cannot drop all names at once, so drop each name in the root.
                self.add(Path::new(""));
                if kernel.expire_all_names().is_err() {
                    for entry in read_dir(&self.root).map_err(errno_of)?.flatten() {
                        tell(kernel.invalidate_entry_at(Path::new(&entry.file_name())));
                    }
                }
                continue;
            }
            let Some(directory) = self.directories.get(&event.wd()) else { continue };
            let name = event.file_name().map_or(&b""[..], |name| name.to_bytes());
            let path = directory.join(OsStr::from_bytes(name));
            let is_new = what.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO);
            if is_new && what.contains(ReadFlags::ISDIR) {
                self.add(&path);
            }
            tell(match what.intersects(ReadFlags::MODIFY | ReadFlags::ATTRIB) {
                true => kernel.invalidate_inode_at(&path),
                false => kernel.invalidate_entry_at(&path),
            });
        }
    }
}

fn tell(result: Result<(), Errno>) {
    if let Err(error) = result {
        eprintln!("the kernel may show old files: {error}");
    }
}

fn main() -> anyhow::Result<()> {
    let words: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [from, point] = &words[..] else { anyhow::bail!("usage: watch DIRECTORY MOUNTPOINT") };
    let signals = EndSignals::watch()?;
    // Start to watch before the mount exists. Otherwise the first changes on the host could be
    // missed.
    let watch = Watch::new(from.clone())?;
    let fs = Arc::new(ByPath::new(Shown(from.clone())));
    let mount = Mount::new(fs, point, Options::exclusive(), &MountOptions::default())?;
    let kernel = mount.kernel_cache().clone();
    std::thread::spawn(move || tell(watch.report_to(&kernel)));
    println!("serving on {}; end it with umount or Ctrl-C", point.display());
    mount.wait_or_unmount(signals)?;
    Ok(())
}
