//! Tests of programs that have the library preloaded, and call only functions of libc.
//!
//! A test starts this test program again. The environment of the new process names the preload
//! library, a namespace and a role. A role is a function that makes plain calls of libc, may fork,
//! and panics if an answer is wrong.
//!
//! As the control, the same roles run without the library, and must pass on the host kernel too.
#![expect(unsafe_code, reason = "libc declares system calls as unsafe")]

mod faults;
mod forks;
mod handed;
mod jump;
mod lookup;
mod memory;
mod proc;
mod process;
mod roles;
mod shm;
mod signals;

use corewalk_testkit::require::{Need, skip};
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
fn credentials_of_a_thread_are_its_own() {
    run("thread_credentials", &Namespace::new());
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
fn holder_in_another_pid_namespace_is_not_taken_for_dead() {
    run("pid_namespace", &Namespace::new());
}

#[test]
fn segments_are_those_of_the_kernel() {
    run("shm_calls", &Namespace::with_shm());
}

#[test]
fn segments_by_number_are_the_same_segments() {
    run("shm_by_number", &Namespace::with_shm());
}

#[test]
fn child_of_fork_has_attached_what_its_parent_has() {
    run("shm_fork", &Namespace::with_shm());
}

#[test]
fn child_without_the_c_library_has_attached_what_its_parent_has() {
    run("shm_raw_fork", &Namespace::with_shm());
}

#[test]
fn child_of_a_killed_parent_has_attached_what_that_had() {
    run("shm_orphan", &Namespace::with_shm());
}

#[test]
fn nobody_attaches_beside_a_fork() {
    run("shm_first_attach", &Namespace::with_shm());
}

#[test]
fn fork_that_fails_holds_up_nobody() {
    run("shm_failing_fork", &Namespace::with_shm());
}

#[test]
fn segment_is_counted_as_attached_until_it_is_unmapped() {
    run("shm_detach", &Namespace::with_shm());
}

#[test]
fn killed_process_has_nothing_attached() {
    run("shm_killed", &Namespace::with_shm());
}

#[test]
fn exec_detaches() {
    run("shm_exec", &Namespace::with_shm());
}

#[test]
fn program_that_cannot_join_the_namespace_runs_after_exec() {
    run("shm_exec_elsewhere", &Namespace::with_shm());
}

#[test]
fn handler_of_a_vfork_child_is_not_its_parents() {
    run("signals_vfork", &Namespace::new());
}

#[test]
fn threads_attach_beside_forks() {
    run("shm_threads", &Namespace::with_shm());
}

#[test]
fn segment_of_another_user_is_refused() {
    run("shm_permissions", &Namespace::with_shm());
}

#[test]
fn signal_ends_a_wait_however_soon_it_comes() {
    run("signals_soon", &Namespace::new());
}

#[test]
fn signal_between_the_queue_and_the_sleep_ends_the_wait() {
    run("signals_before_sleep", &Namespace::new());
}

#[test]
fn wait_that_a_handler_has_left_takes_nothing() {
    run("signals_jump", &Namespace::new());
}

#[test]
fn waits_that_handlers_of_each_other_have_left_take_nothing() {
    run("signals_jump_nested", &Namespace::new());
}

#[test]
fn child_that_a_handler_forks_leaves_the_wait_to_its_parent() {
    run("signals_fork", &Namespace::new());
}

#[test]
fn first_call_of_a_vfork_child_is_refused() {
    run("vfork_first", &Namespace::new());
}

#[test]
fn handlers_are_what_the_program_asks_for() {
    run("signals_kept", &Namespace::new());
}

#[test]
fn handlers_run_with_their_own_flags_while_others_are_installed() {
    run("signals_flags", &Namespace::new());
}

#[test]
fn bad_addresses_are_efault() {
    for role in ["faults_semaphores", "faults_queues", "faults_segments", "faults_actions"] {
        run(role, &Namespace::with_shm());
    }
}

#[test]
fn address_is_good_for_as_long_as_its_memory_is_there() {
    run("faults_gone", &Namespace::new());
}

#[test]
fn files_of_proc_tell_of_the_namespace() {
    for role in ["proc_objects", "proc_limits", "proc_ways"] {
        run(role, &Namespace::with_shm());
    }
}

#[test]
fn ipcs_and_sysctl_say_what_they_say_of_the_kernel() {
    let script = "ipcmk -M 100000 -p 640; ipcmk -Q; ipcmk -S 3; ipcs; ipcs -l; ipcs -u
        cat /proc/sys/kernel/sem /proc/sys/kernel/shmmni
        ipcrm -a; ipcs";
    let Some([ours, linux]) = process::said_by_both(script, &Namespace::with_shm()) else { return };
    // Keys are chosen at random.
    let words = |text: &str| {
        let words = text.split_inclusive(char::is_whitespace);
        words.filter(|word| !word.starts_with("0x")).collect::<String>()
    };
    assert_eq!(words(&ours), words(&linux));
    // Skip the test if the shell does not find `ipcs` and `ipcmk`. Both runs of the script then
    // print the same error message, which proves nothing.
    if ours.contains("not found") {
        skip(Need::Package, ours);
        return;
    }
    assert!(ours.contains("max queues system wide") && ours.contains("100000"), "{ours}");
}

/// With the library, a write to a limit in `/proc/sys/kernel` must fail. On the host kernel it may
/// succeed, since root can set the limits of its own IPC namespace.
#[test]
fn limits_are_not_set_through_proc() {
    let script = "echo 5 > /proc/sys/kernel/msgmax; cat /proc/sys/kernel/msgmax";
    let Some([ours, linux]) = process::said_by_both(script, &Namespace::new()) else { return };
    println!("of the kernel: {linux}");
    assert!(ours.contains("8192\n") && ours.contains("ermission denied"), "{ours}");
}

#[test]
fn functions_that_are_looked_up_are_those_of_the_library() {
    run("lookup_by_handle", &Namespace::with_shm());
}

#[test]
fn locked_memory_is_that_of_the_program() {
    run("memory_locked", &Namespace::new());
}

#[test]
fn segments_leave_no_file() {
    let namespace = Namespace::with_shm();
    for role in ["shm_calls", "shm_killed", "shm_fork"] {
        run(role, &namespace);
    }
    assert_eq!(namespace.segments(), 0);
}

#[test]
fn segments_are_the_kernels_without_a_folder() {
    process::run_beside_linux("shm_calls", &Namespace::new());
}

#[test]
fn control_roles_pass_on_the_host_kernel() {
    for (name, _) in roles::ROLES {
        process::run_on_linux(name);
    }
}

#[test]
fn process_without_its_namespace_gets_an_error_and_says_why_once() {
    for namespace in [Namespace::missing(), Namespace::damaged(), Namespace::unnamed()] {
        let output = process::start("without", &namespace);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{said}");
        let lines: Vec<&str> = said.lines().filter(|line| line.contains("corewalk ipc")).collect();
        assert_eq!(lines.len(), 1, "{said}");
    }
}

#[test]
fn descriptor_of_the_namespace_stays_open() {
    run("handed_closed", &Namespace::handed());
}

#[test]
fn first_call_of_a_process_without_rights_is_answered() {
    for role in ["handed_none_left", "handed_filtered", "handed_other_user"] {
        for namespace in [Namespace::new(), Namespace::handed()] {
            run(role, &namespace);
        }
    }
}

/// The environment names an inherited descriptor and its file. If the descriptor is closed, or open
/// for another file, the library must not use it.
#[test]
fn descriptor_of_another_file_is_left_alone() {
    let handed = Namespace::handed();
    for word in [format!("{}:1:1", handed.number()), "1000000:1:1".to_owned(), "text".to_owned()] {
        let mut command = process::command("without");
        command.env(process::FD_ENV, word);
        let output = process::output_of(command, &Namespace::unnamed());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Tests nothing itself: a process that a test has started calls it to play the role that its
/// environment names.
#[test]
fn role() {
    process::play();
}
