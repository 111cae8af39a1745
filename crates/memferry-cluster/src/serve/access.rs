//! Who may use the server: fixed tokens of a file, and users with passwords, who get a token in a handshake.
//!
//! ```text
//! Authorization: Basic user:password ─▶ users ──┐
//!                Bearer token ─▶ fixed tokens ──┼▶ the name of the user, for logs and for the owner of a query
//!                                issued tokens ─┘
//! ```

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use base64::Engine;
use base64::alphabet;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use memferry_session::error::usage;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use super::error::status;
use super::id::random;

/// A user who has proved who they are; `anonymous` on a server without users and tokens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct User(pub(super) Arc<str>);

/// Tokens that handshakes have issued and that are kept; the one whose last use is longest ago is forgotten.
const ISSUED_MAX: usize = 10_000;

/// The encoding of user and password. ADBC leaves out the padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Shortest token of a file: shorter ones can be tried out.
const TOKEN_BYTES_MIN: usize = 16;

/// Users and tokens that may use the server.
#[derive(Default)]
pub struct Access {
    /// Names and tokens.
    tokens: Vec<(Arc<str>, String)>,
    /// Names and passwords.
    users: Vec<(Arc<str>, String)>,
    issued: Mutex<HashMap<String, Issued>>,
}

/// Without secrets.
impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Access {{ tokens: {}, users: {} }}", self.tokens.len(), self.users.len())
    }
}

#[derive(Debug)]
struct Issued {
    user: User,
    used: Instant,
}

impl Access {
    /// Everybody may use the server.
    pub fn open() -> Access {
        Access::default()
    }

    /// Adds the tokens of a file: one on each line, with a name before a colon if it has one (`report:0123456789abcdef`).
    /// Empty lines, and lines that start with `#`, are left out.
    ///
    /// # Errors
    /// The file cannot be read, others can read it, it has no token, or a token is short.
    pub fn with_tokens(self, file: &Path) -> Result<Access> {
        self.with_tokens_of(file, "--tokens")
    }

    /// The same for the file of another option.
    pub(crate) fn with_tokens_of(mut self, file: &Path, option: &str) -> Result<Access> {
        for (number, line) in secrets(file, option)? {
            let (name, token) = line.split_once(':').unwrap_or(("token", line.as_str()));
            if token.len() < TOKEN_BYTES_MIN {
                return Err(usage(format!(
                    "{}:{number}: the token is shorter than {TOKEN_BYTES_MIN} characters; `head -c 32 /dev/urandom | base64` \
                     makes one",
                    file.display()
                )));
            }
            self.tokens.push((name.into(), token.to_owned()));
        }
        Ok(self)
    }

    /// Adds the users of a file with a line `name:password` for each.
    ///
    /// # Errors
    /// The file cannot be read, others can read it, it has no user, or a line has no password.
    pub fn with_users(mut self, file: &Path) -> Result<Access> {
        for (number, line) in secrets(file, "--users")? {
            match line.split_once(':') {
                Some((name, password)) if !name.is_empty() && !password.is_empty() => {
                    self.users.push((name.into(), password.to_owned()));
                }
                _ => {
                    return Err(usage(format!(
                        "{}:{number}: a user is given as NAME:PASSWORD",
                        file.display()
                    )));
                }
            }
        }
        Ok(self)
    }

    /// The first token of the file.
    pub(crate) fn first_token(&self) -> Option<&str> {
        self.tokens.first().map(|(_, token)| token.as_str())
    }

    /// Whether everybody may use the server.
    pub fn is_open(&self) -> bool {
        self.tokens.is_empty() && self.users.is_empty()
    }

    /// The user of a request.
    ///
    /// # Errors
    /// `UNAUTHENTICATED`: it names no user, or a wrong password or token.
    pub(crate) fn user(&self, headers: &MetadataMap, idle_time: Duration) -> Result<User, Status> {
        if self.is_open() {
            return Ok(User("anonymous".into()));
        }
        let Some(header) = headers.get("authorization") else {
            return Err(refused(
                "the request names no user; send a bearer token, or log in with user and password",
            ));
        };
        let header = header.to_str().map_err(|_| refused("the header authorization is not text"))?;
        let (scheme, secret) = header.split_once(' ').unwrap_or((header, ""));
        if scheme.eq_ignore_ascii_case("bearer") {
            return self.by_token(secret.trim(), idle_time);
        }
        if scheme.eq_ignore_ascii_case("basic") {
            return self.by_password(secret.trim());
        }
        Err(refused("the header authorization has neither a bearer token nor user and password"))
    }

    fn by_token(&self, token: &str, idle_time: Duration) -> Result<User, Status> {
        if let Some((name, _)) = self.tokens.iter().find(|(_, it)| equal(it, token)) {
            return Ok(User(Arc::clone(name)));
        }
        let mut issued = self.issued.lock().unwrap_or_else(PoisonError::into_inner);
        match issued.get_mut(token) {
            Some(found) if found.used.elapsed() < idle_time => {
                found.used = Instant::now();
                Ok(found.user.clone())
            }
            _ => Err(refused("the token is wrong, or has expired; log in again")),
        }
    }

    fn by_password(&self, encoded: &str) -> Result<User, Status> {
        let decoded = BASE64.decode(encoded).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let decoded = decoded.ok_or_else(|| refused("user and password are not encoded as HTTP does"))?;
        let (name, password) = decoded.split_once(':').unwrap_or((decoded.as_str(), ""));
        // All are compared, so that the time does not tell which users there are.
        let mut user = None;
        for (known, right) in &self.users {
            if equal(known, name) & equal(right, password) {
                user = Some(User(Arc::clone(known)));
            }
        }
        user.ok_or_else(|| refused("user or password is wrong"))
    }

    /// A new token for a user, which ends after `idle_time` without use.
    pub(super) fn issue(&self, user: User, idle_time: Duration) -> Result<String, Status> {
        let token: String = random::<32>()?.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut issued = self.issued.lock().unwrap_or_else(PoisonError::into_inner);
        if issued.len() >= ISSUED_MAX {
            issued.retain(|_, it| it.used.elapsed() < idle_time);
        }
        if issued.len() >= ISSUED_MAX
            && let Some(oldest) = issued.iter().min_by_key(|(_, it)| it.used).map(|(token, _)| token.clone())
        {
            issued.remove(&oldest);
        }
        issued.insert(token.clone(), Issued { user, used: Instant::now() });
        Ok(token)
    }

    /// Forgets tokens of handshakes that were not used for `idle_time`.
    pub(super) fn forget_idle(&self, idle_time: Duration) {
        let mut issued = self.issued.lock().unwrap_or_else(PoisonError::into_inner);
        issued.retain(|_, it| it.used.elapsed() < idle_time);
    }
}

fn refused(text: &str) -> Status {
    status(Code::Unauthenticated, text)
}

/// Compares secrets in a time that does not depend on the place of the first difference.
fn equal(a: &str, b: &str) -> bool {
    let different = a.bytes().zip(b.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b));
    a.len() == b.len() && std::hint::black_box(different) == 0
}

/// The lines of a file of secrets with their numbers.
fn secrets(file: &Path, option: &str) -> Result<Vec<(usize, String)>> {
    let unreadable = || format!("cannot read the file of {option}, {}; check the path", file.display());
    let text = fs::read_to_string(file).with_context(unreadable)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::metadata(file).with_context(unreadable)?.permissions().mode();
        if mode & 0o077 != 0 {
            return Err(usage(format!(
                "other users can read {}, which has secrets; `chmod 600 {}` changes that",
                file.display(),
                file.display()
            )));
        }
    }
    let lines = text.lines().zip(1..).map(|(line, number)| (number, line.trim().to_owned()));
    let lines: Vec<_> = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')).collect();
    if lines.is_empty() {
        return Err(usage(format!("the file of {option}, {}, has no line", file.display())));
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn access() -> Access {
        Access {
            tokens: vec![("report".into(), "0123456789abcdef".to_owned())],
            users: vec![("ann".into(), "s:cret".to_owned())],
            issued: Mutex::default(),
        }
    }

    fn user(access: &Access, header: &str, idle_time: Duration) -> Result<String, Code> {
        let mut headers = MetadataMap::new();
        headers.insert("authorization", header.parse().unwrap());
        access.user(&headers, idle_time).map(|user| user.0.to_string()).map_err(|status| status.code())
    }

    #[test]
    fn tokens_and_passwords() {
        let access = access();
        assert_eq!(user(&access, "Bearer 0123456789abcdef", HOUR), Ok("report".to_owned()));
        let basic = |text: &str| format!("basic {}", BASE64.encode(text));
        assert_eq!(user(&access, &basic("ann:s:cret"), HOUR), Ok("ann".to_owned()));
        for wrong in
            ["Bearer 0123456789abcdeX", "Bearer 0123456789abcde", "Bearer ", "Basic !!", "Digest x", "Basic"]
        {
            assert_eq!(user(&access, wrong, HOUR), Err(Code::Unauthenticated), "{wrong}");
        }
        for wrong in ["ann:s", "ann:", "ann", "bob:s:cret", ":s:cret", "annn:s:cret"] {
            assert_eq!(user(&access, &basic(wrong), HOUR), Err(Code::Unauthenticated), "{wrong}");
        }
        assert!(access.user(&MetadataMap::new(), HOUR).is_err());
    }

    #[test]
    fn issued_tokens_end_without_use() {
        let access = access();
        let token = access.issue(User("ann".into()), HOUR).unwrap();
        let header = format!("Bearer {token}");
        assert_eq!(user(&access, &header, HOUR), Ok("ann".to_owned()));
        assert_eq!(user(&access, &header, Duration::ZERO), Err(Code::Unauthenticated));
        access.forget_idle(Duration::ZERO);
        assert_eq!(user(&access, &header, HOUR), Err(Code::Unauthenticated));
    }

    #[test]
    fn issued_tokens_are_bounded() {
        let access = access();
        let first = access.issue(User("ann".into()), HOUR).unwrap();
        for _ in 0..ISSUED_MAX {
            access.issue(User("ann".into()), HOUR).unwrap();
        }
        assert_eq!(access.issued.lock().unwrap().len(), ISSUED_MAX);
        assert!(user(&access, &format!("Bearer {first}"), HOUR).is_err());
    }
}
