//! Regular expressions as clients write them: what of one the compiler does not take, and where it stands.

use regex_syntax::ast::{self, parse::Parser, Ast, GroupKind, Span};
use regex_syntax::hir::translate::Translator;
use std::borrow::Cow;

/// What the compiler says of an expression that it can read and not take; behind it is a name of the library's.
const ITS_WORDS: &str = "lookarounds not supported yet; ";

/// Why the compiler's `error` of an expression came, in words and with the place in `pattern`. None: it is another error.
pub fn fault(pattern: &str, error: &str) -> Option<String> {
    let tree = match Parser::new().parse(pattern) {
        Ok(tree) => tree,
        Err(wrong) => return Some(format!("{}: {}", wrong.kind(), place(pattern, wrong.span()))),
    };
    if let Err(wrong) = Translator::new().translate(pattern, &tree) {
        return Some(format!("{}: {}", wrong.kind(), place(pattern, wrong.span())));
    }
    let name = error.split_once(ITS_WORDS)?.1;
    let looks = found(&tree, |part| match part {
        Ast::Assertion(look) => Some(look.span),
        _ => None,
    });
    let text = |span: &&Span| &pattern[span.start.offset..span.end.offset];
    let at = match (name.starts_with("Start"), name.starts_with("End")) {
        (true, _) => looks.iter().rfind(|span| matches!(text(span), "^" | "\\A")),
        (_, true) => looks.iter().find(|span| matches!(text(span), "$" | "\\z")),
        _ => looks.iter().find(|span| !matches!(text(span), "^" | "\\A" | "$" | "\\z")),
    };
    Some(format!("{} is not supported: {}", look(name), place(pattern, at?)))
}

/// The same of an expression in a larger text, whose place is in `line` already.
pub fn in_words(line: &str) -> Option<String> {
    let (before, behind) = line.split_once(ITS_WORDS)?;
    let (name, expression) = behind.split_once(" in regex ")?;
    Some(format!("{before}{} is not supported: {expression}", look(name)))
}

fn look(name: &str) -> &'static str {
    match name {
        _ if name.starts_with("Start") => "the beginning of the text (`^`) behind something else",
        _ if name.starts_with("End") => "the end of the text (`$`) before something else",
        _ => "a boundary of words",
    }
}

fn place(pattern: &str, span: &Span) -> String {
    let (begin, end) = (span.start.offset, span.end.offset.max(span.start.offset));
    let character = pattern[..begin].chars().count() + 1;
    let mut text: String = pattern[begin..end].chars().take(41).collect();
    if text.is_empty() {
        return format!("at character {character}");
    }
    if let Some((cut, _)) = text.char_indices().nth(40) {
        text.truncate(cut);
        text.push('…');
    }
    format!("`{text}` at character {character}")
}

/// A group that is called `stop` is the compiler's own: what it matches follows the text. Here it is a group like any
/// other.
pub fn plain_groups(pattern: &str) -> Cow<'_, str> {
    const OWN: &str = "stop";
    if !pattern.contains("<stop>") {
        return pattern.into();
    }
    let Ok(tree) = Parser::new().parse(pattern) else { return pattern.into() };
    let names = found(&tree, |part| match part {
        Ast::Group(group) => match &group.kind {
            GroupKind::CaptureName { name, .. } if name.name == OWN => Some(Span::new(group.span.start, name.span.end)),
            _ => None,
        },
        _ => None,
    });
    let mut out = pattern.to_string();
    for span in names.iter().rev() {
        out.replace_range(span.start.offset + "(".len()..span.end.offset + ">".len(), "");
    }
    out.into()
}

/// What `pick` takes of a tree, in the order in which it stands there.
fn found<T>(tree: &Ast, pick: impl Fn(&Ast) -> Option<T>) -> Vec<T> {
    struct Finder<T, F>(Vec<T>, F);
    impl<T, F: Fn(&Ast) -> Option<T>> ast::Visitor for Finder<T, F> {
        type Output = Vec<T>;
        type Err = ();
        fn finish(self) -> Result<Vec<T>, ()> {
            Ok(self.0)
        }
        fn visit_pre(&mut self, part: &Ast) -> Result<(), ()> {
            self.0.extend((self.1)(part));
            Ok(())
        }
    }
    ast::visit(tree, Finder(Vec::new(), pick)).unwrap_or_default()
}
