//! Programs that know nothing of the library, with the library preloaded.
//!
//! A test starts this binary once more, with the library and a namespace in its environment and the
//! name of a role; the role makes plain calls of libc, and forks. What a role finds wrong it says
//! by a panic. The same roles run without the library as the control: the host kernel passes them too.
#![expect(unsafe_code, reason = "libc declares system calls as unsafe")]

mod process;
mod roles;

use process::{Namespace, run};

#[test]
fn undo_is_applied_before_the_end_is_seen() {
    run("undo_at_the_end", &Namespace::new());
}

#[test]
fn child_of_vfork_does_not_end_its_parent() {
    run("vfork", &Namespace::new());
}

#[test]
fn child_of_fork_is_another_task() {
    run("fork", &Namespace::new());
}

#[test]
fn calls_of_processes_wait_for_each_other() {
    run("waits", &Namespace::new());
}

#[test]
fn errors_are_those_of_the_kernel() {
    run("errors", &Namespace::new());
}

#[test]
fn calls_by_number_are_the_same_calls() {
    run("by_number", &Namespace::new());
}

#[test]
fn credentials_follow_the_process() {
    run("credentials", &Namespace::new());
}

#[test]
fn threads_share_a_task() {
    run("threads", &Namespace::new());
}

#[test]
fn undo_survives_exec() {
    run("exec", &Namespace::new());
}

#[test]
fn undo_of_a_killed_process_is_applied() {
    run("killed", &Namespace::new());
}

#[test]
fn control_roles_pass_on_the_host_kernel() {
    for (name, _) in roles::ROLES {
        process::run_on_linux(name);
    }
}

#[test]
fn process_without_its_namespace_ends_with_a_line() {
    for namespace in [Namespace::missing(), Namespace::damaged(), Namespace::unnamed()] {
        let output = process::start("by_number", &namespace);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(127), "{said}");
        let lines: Vec<&str> = said.lines().filter(|line| line.contains("corewalk ipc")).collect();
        assert_eq!(lines.len(), 1, "{said}");
    }
}

/// Not a test of its own: what the tests start.
#[test]
fn role() {
    process::play();
}
