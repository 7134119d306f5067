//! The dispositions of signals.
//!
//! Source: proc_pid_status(5), `SigIgn`.

/// Returns true if this process ignores `signal`. For example, nohup(1) starts a program with
/// SIGHUP ignored.
pub fn signal_is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & 1 << (signal - 1) != 0)
}
