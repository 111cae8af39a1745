//! AppArmor profiles that the kernel attaches to a program when it executes it. Their rules must allow the library's file.
//!
//! A profile is a directory below `policy/profiles` with a file for each property. Older kernels show a pattern in `attach` as
//! `<unknown>`, so only profiles without patterns are found there.
//!
//! Source: apparmor.d(5), "Globbing (AARE)"; Linux `security/apparmor/apparmorfs.c`.

use std::fs;
use std::path::Path;

const PROFILES: &str = "/sys/kernel/security/apparmor/policy/profiles";

/// The name of the profile that is enforced on this executable.
pub(crate) fn profile(executable: &Path) -> Option<String> {
    profile_in(Path::new(PROFILES), executable)
}

fn profile_in(profiles: &Path, executable: &Path) -> Option<String> {
    let executable = fs::canonicalize(executable).ok()?;
    let mut directories = fs::read_dir(profiles).ok()?.flatten();
    directories.find_map(|directory| {
        let read = |property| fs::read_to_string(directory.path().join(property)).ok();
        let (name, mode, attach) = (read("name")?, read("mode")?, read("attach")?);
        let is_attached = is_match(attach.trim_end().as_bytes(), executable.as_os_str().as_encoded_bytes());
        (mode.trim_end() == "enforce" && is_attached).then(|| name.trim_end().to_owned())
    })
}

/// Whether a path matches a pattern: `*` and `?` stop at a slash, `**` does not, `{a,b}` is a or b, `[a-c]` a letter.
fn is_match(pattern: &[u8], path: &[u8]) -> bool {
    let Some((first, rest)) = pattern.split_first() else { return path.is_empty() };
    let next = path.split_first();
    match first {
        b'*' => {
            let (rest, crosses) = rest.strip_prefix(b"*").map_or((rest, false), |rest| (rest, true));
            let length = path.iter().position(|letter| *letter == b'/' && !crosses).unwrap_or(path.len());
            (0..=length).any(|taken| is_match(rest, &path[taken..]))
        }
        b'?' => next.is_some_and(|(letter, path)| *letter != b'/' && is_match(rest, path)),
        b'{' => match alternatives(rest) {
            Some((ways, rest)) => ways.iter().any(|way| is_match(&[way, rest].concat(), path)),
            None => false,
        },
        b'[' => match rest.iter().position(|letter| *letter == b']') {
            Some(end) => next.is_some_and(|(letter, path)| {
                is_in_class(&rest[..end], *letter) && is_match(&rest[end + 1..], path)
            }),
            None => false,
        },
        b'\\' if !rest.is_empty() => {
            next.is_some_and(|(letter, path)| *letter == rest[0] && is_match(&rest[1..], path))
        }
        _ => next.is_some_and(|(letter, path)| letter == first && is_match(rest, path)),
    }
}

/// The parts of `a,b}rest`, and the rest.
fn alternatives(pattern: &[u8]) -> Option<(Vec<&[u8]>, &[u8])> {
    let (mut ways, mut start, mut depth) = (Vec::new(), 0, 0);
    for (at, letter) in pattern.iter().enumerate() {
        match letter {
            b'{' => depth += 1,
            b'}' if depth > 0 => depth -= 1,
            b',' | b'}' if depth == 0 => {
                ways.push(&pattern[start..at]);
                start = at + 1;
                if *letter == b'}' {
                    return Some((ways, &pattern[start..]));
                }
            }
            _ => {}
        }
    }
    None
}

fn is_in_class(class: &[u8], letter: u8) -> bool {
    let (class, is_excluded) = class.strip_prefix(b"^").map_or((class, false), |class| (class, true));
    let mut rest = class;
    let mut is_found = false;
    while let Some((first, others)) = rest.split_first() {
        match others {
            [b'-', last, after @ ..] => {
                is_found |= (*first..=*last).contains(&letter);
                rest = after;
            }
            _ => {
                is_found |= *first == letter;
                rest = others;
            }
        }
    }
    is_found != is_excluded && letter != b'/'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_apparmor() {
        let is_match = |pattern: &str, path: &str| is_match(pattern.as_bytes(), path.as_bytes());
        for (pattern, path) in [
            ("/usr/bin/man", "/usr/bin/man"),
            ("/usr/{s,}bin/ntpd", "/usr/sbin/ntpd"),
            ("/usr/{s,}bin/ntpd", "/usr/bin/ntpd"),
            ("/{usr/{local/,},opt/}bin/x", "/usr/local/bin/x"),
            ("/usr/lib/*/evince", "/usr/lib/x86/evince"),
            ("/opt/**", "/opt/a/b"),
            ("/opt/**/b", "/opt/a/c/b"),
            ("/bin/python3.[0-9]", "/bin/python3.7"),
            ("/bin/python3.[^0-8]", "/bin/python3.9"),
            ("/bin/?sh", "/bin/dsh"),
            ("/bin/a\\*", "/bin/a*"),
        ] {
            assert!(is_match(pattern, path), "{pattern} {path}");
        }
        for (pattern, path) in [
            ("/usr/bin/man", "/usr/bin/mandb"),
            ("/usr/bin/mandb", "/usr/bin/man"),
            ("/usr/{s,}bin/ntpd", "/usr/xbin/ntpd"),
            ("/usr/lib/*/evince", "/usr/lib/x86/64/evince"),
            ("/opt/*", "/opt/a/b"),
            ("/bin/python3.[0-9]", "/bin/python3.x"),
            ("/bin/?sh", "/bin/sh"),
            ("/bin/[^a]sh", "/bin//sh"),
            ("/bin/a\\*", "/bin/ab"),
            ("<unknown>", "/bin/sh"),
            ("/bin/{a", "/bin/a"),
        ] {
            assert!(!is_match(pattern, path), "{pattern} {path}");
        }
    }

    #[test]
    fn an_enforced_profile_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let (profiles, program) = (directory.path().join("profiles"), directory.path().join("server"));
        fs::write(&program, "").unwrap();
        let found = || profile_in(&profiles, &program);
        assert_eq!(found(), None, "there is no AppArmor");
        let add = |name: &str, mode: &str, attach: &Path| {
            let profile = profiles.join(format!("{name}.1"));
            fs::create_dir_all(&profile).unwrap();
            for (property, value) in [("name", name), ("mode", mode), ("attach", attach.to_str().unwrap())] {
                fs::write(profile.join(property), format!("{value}\n")).unwrap();
            }
        };
        let real = fs::canonicalize(&program).unwrap();
        add("other", "enforce", Path::new("/usr/bin/man"));
        add("learning", "complain", &real);
        assert_eq!(found(), None);
        add("servers", "enforce", &real.with_file_name("{client,server}"));
        assert_eq!(found().as_deref(), Some("servers"));
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&program, &link).unwrap();
        assert_eq!(profile_in(&profiles, &link).as_deref(), Some("servers"));
    }
}
