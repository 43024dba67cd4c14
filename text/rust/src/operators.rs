//! `+`, `~`, `*` and `%` as functions that do what Python does and are charged for what they make.
//!
//! minijinja bounds the instructions of a template, not its memory, and its operators cannot be replaced. So a template's
//! source is rewritten before it is compiled: `a + b` becomes `__add(a, b)`, in the same line, at the same precedence.

use crate::budget;
use crate::methods;
use crate::python::text_of;
use minijinja::machinery::{tokenize, Token, WhitespaceConfig};
use minijinja::value::{Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value};
use std::mem::MaybeUninit;
use std::sync::Arc;

struct Lexeme<'a> {
    token: Token<'a>,
    begin: usize, // bytes
    end: usize,
}

/// A change of the source; of several at one place, the lower order comes first.
struct Edit {
    at: usize,
    order: u8,
    remove: usize,
    insert: &'static str,
}
const CLOSE: u8 = 0;
const REPLACE: u8 = 1;
const OPEN: u8 = 2; // the loosest operator's parenthesis is pushed, and stays, first

/// The operators of each precedence, loosest first.
fn level_of(token: &Token) -> Option<usize> {
    match token {
        Token::Plus | Token::Minus => Some(0),
        Token::Tilde => Some(1),
        Token::Mul | Token::Div | Token::FloorDiv | Token::Mod => Some(2),
        _ => None,
    }
}
const LEVELS: usize = 3;
/// The function that takes an operator's place.
fn opening_of(token: &Token) -> Option<&'static str> {
    match token {
        Token::Plus => Some("__add("),
        Token::Tilde => Some("__cat("),
        Token::Mul => Some("__mul("),
        Token::Mod => Some("__mod("),
        _ => None,
    }
}
const KEYWORDS: [&str; 14] =
    ["and", "or", "not", "in", "if", "else", "elif", "for", "set", "recursive", "as", "import", "with", "do"];

/// `source` with its operators replaced; unchanged where it is no template (compiling it says why).
pub fn rewrite(source: &str) -> String {
    let whitespace = WhitespaceConfig { keep_trailing_newline: true, lstrip_blocks: false, trim_blocks: false };
    let mut lexemes = Vec::new();
    for item in tokenize(source, false, Default::default(), whitespace) {
        let Ok((token, span)) = item else { return source.to_string() };
        lexemes.push(Lexeme { token, begin: span.start_offset as usize, end: span.end_offset as usize });
    }
    let mut edits = Vec::new();
    let mut open: Vec<usize> = vec![0]; // where the operand list of each open bracket begins
    let mut operators: Vec<Vec<usize>> = vec![Vec::new()]; // and its operators
    for i in 0..lexemes.len() {
        match lexemes[i].token {
            Token::BracketOpen | Token::ParenOpen | Token::BraceOpen => {
                open.push(i + 1);
                operators.push(Vec::new());
            }
            Token::BracketClose | Token::ParenClose | Token::BraceClose => {
                let (Some(begin), Some(ops)) = (open.pop(), operators.pop()) else { return source.to_string() };
                wrap(&lexemes, begin, i, &ops, 0, &mut edits);
                if open.is_empty() {
                    return source.to_string();
                }
            }
            _ if is_boundary(&lexemes, i) => {
                let (Some(begin), Some(ops)) = (open.last_mut(), operators.last_mut()) else {
                    return source.to_string();
                };
                wrap(&lexemes, *begin, i, ops, 0, &mut edits);
                *begin = i + 1;
                ops.clear();
            }
            _ if level_of(&lexemes[i].token).is_some() && open.last().is_some_and(|&begin| begin < i) => {
                let unary = level_of(&lexemes[i - 1].token).is_some() || lexemes[i - 1].token_is_pow();
                if let (false, Some(ops)) = (unary, operators.last_mut()) {
                    ops.push(i);
                }
            }
            _ => {}
        }
    }
    apply(source, edits)
}

impl Lexeme<'_> {
    fn token_is_pow(&self) -> bool {
        matches!(self.token, Token::Pow)
    }
}

/// True where an operand of our operators cannot continue.
fn is_boundary(lexemes: &[Lexeme], i: usize) -> bool {
    let before = |n: usize| i.checked_sub(n).map(|at| &lexemes[at].token);
    match &lexemes[i].token {
        Token::Ident(name) => {
            let first = matches!(before(1), Some(Token::BlockStart));
            let attribute = matches!(before(1), Some(Token::Dot | Token::Pipe | Token::Ident("is")))
                || matches!((before(2), before(1)), (Some(Token::Ident("is")), Some(Token::Ident("not"))));
            first || (KEYWORDS.contains(name) && !attribute)
        }
        Token::TemplateData(_) | Token::VariableStart | Token::VariableEnd | Token::BlockStart | Token::BlockEnd => {
            true
        }
        Token::Comma | Token::Colon | Token::Assign => true,
        Token::Eq | Token::Ne | Token::Gt | Token::Gte | Token::Lt | Token::Lte => true,
        _ => false,
    }
}

/// Wraps the operators of `level` and tighter in lexemes [begin, end). `operators`: their places, ascending.
fn wrap(lexemes: &[Lexeme], begin: usize, end: usize, operators: &[usize], level: usize, edits: &mut Vec<Edit>) {
    if level == LEVELS || operators.is_empty() || begin >= end {
        return;
    }
    let own: Vec<usize> = operators.iter().copied().filter(|&i| level_of(&lexemes[i].token) == Some(level)).collect();
    let opening = |i: usize| opening_of(&lexemes[i].token);
    let same = own.iter().all(|&i| opening(i) == opening(own[0]));
    let term_end = |n: usize| own.get(n).copied().unwrap_or(end);
    for (n, &i) in own.iter().enumerate().rev() {
        // the last operator is the outermost
        let Some(opening) = opening(i) else { continue };
        edits.push(Edit { at: lexemes[i].begin, order: REPLACE, remove: 1, insert: "," });
        if n == 0 || !same {
            let close = if same { end } else { term_end(n + 1) };
            edits.push(Edit { at: lexemes[begin].begin, order: OPEN, remove: 0, insert: opening });
            edits.push(Edit { at: lexemes[close - 1].end, order: CLOSE, remove: 0, insert: ")" });
        }
    }
    let mut from = begin;
    for n in 0..=own.len() {
        let inside: Vec<usize> = operators.iter().copied().filter(|&i| i >= from && i < term_end(n)).collect();
        wrap(lexemes, from, term_end(n), &inside, level + 1, edits);
        from = term_end(n) + 1;
    }
}

fn apply(source: &str, mut edits: Vec<Edit>) -> String {
    edits.sort_by_key(|edit| (edit.at, edit.order)); // stable
    let mut out = String::with_capacity(source.len() + 8 * edits.len());
    let mut from = 0;
    for edit in &edits {
        out.push_str(&source[from..edit.at]);
        out.push_str(edit.insert);
        from = edit.at + edit.remove;
    }
    out.push_str(&source[from..]);
    out
}

fn unsupported(sign: char, a: &Value, b: &Value) -> Error {
    let text = format!("tried to use {sign} operator on unsupported types {} and {}", a.kind(), b.kind());
    Error::new(ErrorKind::InvalidOperation, text)
}

/// Both as integers, or else both as floats; None if one is no number. A bool is 0 or 1, as in Python.
enum Numbers {
    Integers(i128, i128),
    Floats(f64, f64),
}
fn numbers(a: &Value, b: &Value) -> Option<Numbers> {
    let is_number = |v: &Value| matches!(v.kind(), ValueKind::Number | ValueKind::Bool);
    let integer = |v: &Value| match v.kind() {
        ValueKind::Bool => Some(i128::from(v.is_true())),
        _ if v.is_integer() => i128::try_from(v.clone()).ok(),
        _ => None,
    };
    let float = |v: &Value| integer(v).map(|n| n as f64).or_else(|| f64::try_from(v.clone()).ok());
    if !is_number(a) || !is_number(b) {
        return None;
    }
    match (integer(a), integer(b)) {
        (Some(a), Some(b)) => Some(Numbers::Integers(a, b)),
        _ => Some(Numbers::Floats(float(a)?, float(b)?)),
    }
}

fn integer(sign: char, a: &Value, b: &Value, result: Option<i128>) -> Result<Value, Error> {
    let result = result.ok_or_else(|| unsupported(sign, a, b))?;
    Ok(i64::try_from(result).map_or_else(|_| Value::from(result), Value::from))
}

fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

fn add(a: &Value, b: &Value) -> Result<Value, Error> {
    if let (Some(left), Some(right)) = (a.as_str(), b.as_str()) {
        budget::charge(left.len() + right.len())?;
        return Ok(Value::from([left, right].concat()));
    }
    if is_list(a) && is_list(b) {
        let items: Vec<Value> = a.try_iter()?.chain(b.try_iter()?).take(budget::MAX_VALUE_ITEMS + 1).collect();
        budget::charge_items(items.len())?;
        return Ok(Value::from(items));
    }
    match numbers(a, b) {
        Some(Numbers::Integers(x, y)) => integer('+', a, b, x.checked_add(y)),
        Some(Numbers::Floats(x, y)) => Ok(Value::from(x + y)),
        None => Err(unsupported('+', a, b)),
    }
}

fn times(what: &Value, count: &Value) -> Option<Result<Value, Error>> {
    let count = count.is_integer().then(|| i64::try_from(count.clone()).ok())??;
    let count = usize::try_from(count).unwrap_or(0); // Python: less than nothing is nothing
    if let Some(text) = what.as_str() {
        return Some(budget::charge(text.len().saturating_mul(count)).map(|()| Value::from(text.repeat(count))));
    }
    if !is_list(what) {
        return None;
    }
    let items: Vec<Value> = what.try_iter().ok()?.collect();
    let all = items.len().saturating_mul(count);
    Some(budget::charge_items(all).map(|()| items.iter().cycle().take(all).cloned().collect()))
}

fn mul(a: &Value, b: &Value) -> Result<Value, Error> {
    if let Some(result) = times(a, b).or_else(|| times(b, a)) {
        return result;
    }
    match numbers(a, b) {
        Some(Numbers::Integers(x, y)) => integer('*', a, b, x.checked_mul(y)),
        Some(Numbers::Floats(x, y)) => Ok(Value::from(x * y)),
        None => Err(unsupported('*', a, b)),
    }
}

/// Python's remainder has the divisor's sign; a text is a format.
fn modulo(a: &Value, b: &Value) -> Result<Value, Error> {
    if let Some(format) = a.as_str() {
        let args: Vec<Value> = if is_list(b) { b.try_iter()?.collect() } else { vec![b.clone()] };
        return methods::percent_format(format, &args).map(Value::from);
    }
    match numbers(a, b) {
        Some(Numbers::Integers(x, y)) => {
            let rest = x.checked_rem(y).map(|rest| if rest != 0 && (rest < 0) != (y < 0) { rest + y } else { rest });
            integer('%', a, b, rest)
        }
        Some(Numbers::Floats(x, y)) if y != 0.0 => {
            let rest = x % y;
            Ok(Value::from(if rest != 0.0 && (rest < 0.0) != (y < 0.0) { rest + y } else { rest }))
        }
        _ => Err(unsupported('%', a, b)),
    }
}

fn fold(operator: fn(&Value, &Value) -> Result<Value, Error>, operands: Rest<Value>) -> Result<Value, Error> {
    let mut rest = operands.iter();
    let first = rest.next().cloned().unwrap_or_default();
    rest.try_fold(first, |sum, next| operator(&sum, next))
}

/// Written where it stays: an `Arc<str>` made of a `String` copies it.
fn joined(texts: &[&str], length: usize) -> Arc<str> {
    let mut bytes = Arc::<[u8]>::new_uninit_slice(length);
    let mut written = 0;
    if let Some(room) = Arc::get_mut(&mut bytes) {
        for text in texts {
            // SAFETY: bytes of a text may stand where any bytes may.
            let source = unsafe { &*(text.as_bytes() as *const [u8] as *const [MaybeUninit<u8>]) };
            room[written..written + text.len()].copy_from_slice(source);
            written += text.len();
        }
    }
    assert_eq!(written, length, "every byte is written");
    // SAFETY: all of `bytes` was written: those of `texts`, one behind the other; str has the layout of [u8].
    unsafe { Arc::from_raw(Arc::into_raw(bytes.assume_init()) as *const str) }
}

/// Texts become one text at once: a copy of each, however many there are.
fn sum(operands: Rest<Value>) -> Result<Value, Error> {
    let texts: Option<Vec<&str>> = operands.iter().map(Value::as_str).collect();
    let Some(texts) = texts else { return fold(add, operands) };
    let length = texts.iter().map(|text| text.len()).sum();
    budget::charge(length)?;
    Ok(Value::from(joined(&texts, length)))
}

pub fn install(env: &mut Environment<'static>) {
    env.add_function("__add", sum);
    env.add_function("__mod", |operands: Rest<Value>| fold(modulo, operands));
    env.add_function("__mul", |operands: Rest<Value>| fold(mul, operands));
    env.add_function("__cat", |operands: Rest<Value>| {
        let mut out = String::new();
        for operand in operands.iter().filter(|v| !v.is_undefined()) {
            out.push_str(&text_of(operand)?);
            if out.len() > budget::MAX_VALUE_BYTES {
                break; // charge() says it
            }
        }
        budget::charge(out.len()).map(|()| Value::from(out))
    });
}
