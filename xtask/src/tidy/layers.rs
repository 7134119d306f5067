//! Rules about crates: their dependencies, those between the modules of `corewalk-ipc` and of
//! `corewalk`, and which crates may have unsafe code.
//!
//! A crate depends only on crates of lower layers. Code that two crates of one layer share belongs
//! to a lower one. The test kit has no layer: it depends on none of the crates, and only tests and
//! the lab depend on it.
//!
//! Five crates may have unsafe code. The others start with `#![forbid(unsafe_code)]`.
//!
//! Source: `ARCHITECTURE.md`; Asterinas, "a kernel crate may depend on lower layers".

use super::{Finding, Manifest};
use crate::source::RustFile;

const LAYERS: [(&str, u32); 15] = [
    ("corewalk-base", 0),
    ("corewalk-sync", 1),
    ("corewalk-fuse-ring", 1),
    ("corewalk-mbcache", 2),
    ("corewalk", 3),
    ("corewalk-ipc", 3),
    ("corewalk-fuse", 4),
    ("corewalk-hostfs", 4),
    ("corewalk-store", 4),
    ("corewalk-cluster", 4),
    ("corewalk-ipc-preload", 4),
    ("corewalk-cli", 5),
    ("corewalk-lab", 5),
    ("corewalk-conformance", 5),
    ("xtask", 0),
];

/// The modules of `corewalk-ipc` in lower layers, lowest first. All others are in the highest
/// layer.
const IPC_MODULES: [&str; 3] = [
    "backing contention field flags handle ids ids/recover layout limits list lock perm pool \
     pool/join process shared spin status task_line",
    "msg/filter msg/handover msg/message msg/node msg/queue msg/rebuild sem/freeze sem/log \
     sem/node sem/queue sem/recover sem/set sem/txn sem/undo sem/word shm/segment",
    "msg msg/watched recover sem sem/reap sem/watched shm watch",
];

const CORE_MODULES: [&str; 9] = [
    "acl cred key_lock name slot",
    "attr hash table",
    "dentry fs mount xattr",
    "inode path_file_system read_set tmpfs",
    "dcache",
    "dpath",
    "vfs",
    "inode_table path",
    "walk",
];

const TESTKIT: &str = "corewalk-testkit";
const LAB: &str = "corewalk-lab";

const UNSAFE_CRATES: [&str; 5] =
    ["crates/base/", "crates/sync/", "crates/fuse-ring/", "crates/testkit/", "crates/ipc-preload/"];

pub(super) fn dependencies(manifest: &Manifest) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut section = "";
    let Some(own) = package_name(&manifest.text) else { return findings };
    for (at, line) in manifest.text.lines().map(str::trim).enumerate() {
        let header = line.strip_prefix('[').map(|header| header.trim_end_matches(']'));
        section = header.unwrap_or(section);
        // In a manifest, a dependency is named in a header `[dependencies.NAME]`, or at the start
        // of a line.
        let (table, name) = match header.map(|header| header.rsplit_once('.')) {
            Some(Some((table, name))) => (table, name),
            Some(None) => continue,
            None => (section, line.split(['=', '.', ' ']).next().unwrap_or_default()),
        };
        let kind = table.rsplit('.').next().unwrap_or_default();
        let is_dependency = kind.ends_with("dependencies") && !table.starts_with("workspace");
        if !is_dependency || !(name == "corewalk" || name.starts_with("corewalk-")) {
            continue;
        }
        if let Some(instead) = refuse(own, name, kind) {
            findings.push(Finding::new(&manifest.path, at + 1, "layers", instead));
        }
    }
    findings
}

fn refuse(own: &str, name: &str, kind: &str) -> Option<String> {
    let layer_of = |wanted: &str| LAYERS.iter().find(|(known, _)| *known == wanted);
    if name == TESTKIT {
        // Published crates must not need the test kit, which is not published. The lab is not
        // published either, and measures with servers of the test kit.
        let is_allowed = kind == "dev-dependencies" || own == LAB;
        return (!is_allowed).then(|| format!("{TESTKIT} is for tests and the lab only"));
    }
    let Some((_, below)) = layer_of(name) else {
        return Some(format!("{name} has no layer; give it one in xtask/src/tidy/layers.rs"));
    };
    if own == TESTKIT {
        return Some(format!("{TESTKIT} depends on no other crate"));
    }
    let Some((_, above)) = layer_of(own) else {
        return Some(format!("{own} has no layer; give it one in xtask/src/tidy/layers.rs"));
    };
    let instead = || format!("{own} may not depend on {name}; move shared code to a lower layer");
    (below >= above).then(instead)
}

fn package_name(text: &str) -> Option<&str> {
    let (_, package) = text.split_once("[package]")?;
    let line = package.lines().find(|line| line.trim_start().starts_with("name"))?;
    line.split('"').nth(1)
}

pub(super) fn ipc_modules(file: &RustFile) -> Vec<Finding> {
    let module =
        file.path.strip_prefix("crates/ipc/src/").and_then(|path| path.strip_suffix(".rs"));
    let Some(module) = module else { return Vec::new() };
    let is_in = |layer: &&str, module: &str| layer.split_whitespace().any(|known| known == module);
    let layer_of = |module: &str| {
        IPC_MODULES.iter().position(|layer| is_in(layer, module)).unwrap_or(IPC_MODULES.len())
    };
    let folder = module.rsplit_once('/').map_or(String::new(), |(folder, _)| format!("{folder}/"));
    let mut findings = Vec::new();
    for (at, line) in file.lines.iter().enumerate() {
        let (folder, used) = match line.code.strip_prefix("use super::") {
            Some(used) => (folder.as_str(), used),
            None => ("", line.code.strip_prefix("use crate::").unwrap_or_default()),
        };
        let names = used.split(|c: char| c != '_' && !c.is_alphanumeric());
        // In a `use` without braces, only the first name is a module.
        let count = if used.starts_with('{') { usize::MAX } else { 1 };
        let modules = names.take(count).filter(|name| name.starts_with(char::is_lowercase));
        for used in modules.map(|name| format!("{folder}{name}")) {
            if layer_of(&used) > layer_of(module) {
                let instead = format!("{module} may not use {used}, a module of a higher layer");
                findings.push(Finding::new(&file.path, at + 1, "layers", instead));
            }
        }
    }
    findings
}

/// Tests may use any module.
pub(super) fn core_modules(file: &RustFile) -> Vec<Finding> {
    let path = file.path.strip_prefix("crates/corewalk/src/").unwrap_or_default();
    let is_test = path.ends_with("tests.rs") || path.contains("loom_models");
    if path.is_empty() || is_test || path == "lib.rs" {
        return Vec::new();
    }
    let layer_of = |wanted: &str| {
        CORE_MODULES.iter().position(|layer| layer.split(' ').any(|module| module == wanted))
    };
    let module = path.split(['/', '.']).next().unwrap_or_default();
    let mut findings = Vec::new();
    for (at, line) in file.lines.iter().enumerate() {
        let used = line.code.strip_prefix("use crate::").and_then(|used| used.split_once("::"));
        let Some((used, _)) = used.filter(|(used, _)| *used != module) else { continue };
        let instead = match (layer_of(used), layer_of(module)) {
            (Some(below), Some(above)) if below < above => continue,
            (Some(_), Some(_)) => format!("{module} may not use {used}; move shared code down"),
            _ => format!("give {used} and {module} a layer in xtask/src/tidy/layers.rs"),
        };
        findings.push(Finding::new(&file.path, at + 1, "layers", instead));
    }
    findings
}

pub(super) fn unsafe_crates(files: &[RustFile]) -> Vec<Finding> {
    let is_root = |path: &str| path.ends_with("src/lib.rs") || path.ends_with("src/main.rs");
    files
        .iter()
        .filter(|file| is_root(&file.path))
        .filter(|file| !UNSAFE_CRATES.iter().any(|folder| file.path.starts_with(folder)))
        .filter(|file| !file.lines.iter().any(|line| line.code.contains("#![forbid(unsafe_code)]")))
        .map(|file| Finding::new(&file.path, 1, "unsafe", "write #![forbid(unsafe_code)]"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_found(text: &str) -> Vec<usize> {
        let manifest = Manifest { path: "Cargo.toml".to_owned(), text: text.to_owned() };
        dependencies(&manifest).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn dependency_on_the_same_or_a_higher_layer_is_found() {
        let up = "[package]\nname = \"corewalk-sync\"\n[dependencies]\ncorewalk.workspace = true\n";
        assert_eq!(lines_found(up), [4]);
        let sideways = "[package]\nname = \"corewalk\"\n[target.'cfg(unix)'.dependencies]\n\
                        corewalk-ipc = { path = \"../ipc\" }\n";
        assert_eq!(lines_found(sideways), [4]);
        let table = "[package]\nname = \"corewalk\"\n[dependencies.corewalk-fuse]\npath = \"a\"\n";
        assert_eq!(lines_found(table), [3]);
        let unknown = "[package]\nname = \"corewalk\"\n[dependencies]\ncorewalk-new = \"1\"\n";
        assert_eq!(lines_found(unknown), [4]);
    }

    #[test]
    fn dependency_on_a_lower_layer_is_not_found() {
        let down = "[package]\nname = \"corewalk-fuse\"\n[dependencies]\ncorewalk = \"1\"\n\
                    rustix = \"1\"\n[dev-dependencies]\ncorewalk-testkit.workspace = true\n";
        assert_eq!(lines_found(down), []);
        let lab = down.replace("-fuse", "-lab").replace("dev-", "");
        assert_eq!(lines_found(&lab), []);
        let workspace = "[workspace.dependencies]\ncorewalk = { path = \"a\" }\n";
        assert_eq!(lines_found(workspace), []);
    }

    #[test]
    fn dependency_of_a_library_on_the_test_kit_is_found() {
        let text = "[package]\nname = \"corewalk\"\n[dependencies]\ncorewalk-testkit = \"1\"\n";
        assert_eq!(lines_found(text), [4]);
        let text =
            "[package]\nname = \"corewalk-testkit\"\n[dependencies]\ncorewalk-sync = \"1\"\n";
        assert_eq!(lines_found(text), [4]);
    }

    #[test]
    fn crate_root_that_does_not_forbid_unsafe_code_is_found() {
        let bare = RustFile::parse("crates/corewalk/src/lib.rs", "//! x\n");
        let may = RustFile::parse("crates/sync/src/lib.rs", "//! x\n");
        let good = RustFile::parse("crates/ipc/src/lib.rs", "#![forbid(unsafe_code)]\n");
        assert_eq!(unsafe_crates(&[bare, may, good]).len(), 1);
    }

    #[test]
    fn use_of_a_module_of_a_higher_layer_is_found() {
        let found = |path, text| super::super::lines_found(ipc_modules, path, text);
        let text = "use crate::recover;\nuse super::txn::Txn;\nuse crate::{field, sem};\n";
        assert_eq!(found("crates/ipc/src/sem/set.rs", text), [1, 3]);
        assert_eq!(found("crates/ipc/src/pool.rs", "use crate::task::Task;\n"), [1]);
        assert!(found("crates/ipc/src/sem/reap.rs", text).is_empty());
        assert!(found("crates/fuse/src/field.rs", "use crate::task::Task;\n").is_empty());
    }

    #[test]
    fn use_of_a_core_module_that_is_not_lower_is_found() {
        let found = |path, text| super::super::lines_found(core_modules, path, text);
        let text = "use crate::Errno;\nuse crate::dentry::Flags;\nuse crate::name::Name;\n";
        assert_eq!(found("crates/corewalk/src/hash.rs", text), [2]);
        assert_eq!(found("crates/corewalk/src/tmpfs/dir.rs", "use crate::inode::Perm;\n"), [1]);
        assert_eq!(found("crates/corewalk/src/vfs/new.rs", "use crate::unknown::X;\n"), [1]);
        assert!(found("crates/corewalk/src/dentry/body.rs", text).is_empty());
        assert!(found("crates/corewalk/src/hash/tests.rs", text).is_empty());
        assert!(found("crates/ipc/src/hash.rs", text).is_empty());
    }
}
