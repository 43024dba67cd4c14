"""`baton chat` as a person meets it: on a terminal, from a pipe, with a server that answers, dies or drains."""
import signal
import socket
import unittest

from chat_terminal import Server, Terminal, chat

UP, LEFT, HOME, DELETE, BACKSPACE, INTERRUPT, END_OF_INPUT = "\x1b[A", "\x1b[D", "\x1b[H", "\x1b[3~", "\x7f", "\x03", "\x04"


class Chat(unittest.TestCase):
    def setUp(self):
        self.server = Server()
        self.addCleanup(self.server.close)

    def terminal(self, *args, **kw):
        terminal = Terminal("--url", self.server.address, *args, **kw)
        self.addCleanup(terminal.close)
        terminal.shows("This is demo")
        terminal.ends_with(">")
        return terminal

    def asked(self, i=-1):
        return self.server.questions[i]["messages"][-1]["content"]


class Typing(Chat):
    def ask(self, terminal, keys):
        before = len(self.server.questions)
        terminal.type(keys + "\r")
        terminal.wait(lambda: len(self.server.questions) > before, "never asked")
        terminal.ends_with("fine\n\n>")

    def test_a_line_can_be_edited(self):
        t = self.terminal()
        self.ask(t, "wrold" + LEFT * 4 + DELETE + "\x1b[C" + "r" + HOME + "my ")
        self.assertEqual(self.asked(), "my world")

    def test_backspace_takes_a_whole_glyph(self):
        for env in ({"LANG": "C.UTF-8"}, {"LANG": "C", "LC_ALL": "C"}):
            with self.subTest(env):
                t = self.terminal(env=env)
                t.type("é你好🙂x")
                t.ends_with("> é你好🙂x")
                t.type(BACKSPACE * 3)
                t.ends_with("> é你")
                self.ask(t, "!")
                self.assertEqual(self.asked(), "é你!")

    def test_up_brings_earlier_messages_back(self):
        t = self.terminal()
        self.ask(t, "first")
        self.ask(t, "second")
        self.ask(t, UP + UP)
        self.assertEqual(self.asked(), "first")

    def test_pasted_text_is_one_message(self):
        t = self.terminal()
        self.ask(t, "see: \x1b[200~one\r\r/two\r\tthree\x1b[31m\r\x1b[201~ end")
        self.assertEqual(self.asked(), "see: one\n\n/two\n\tthree[31m end")
        self.assertEqual(len(self.server.questions), 1)

    def test_alt_enter_begins_a_line_of_the_same_message(self):
        t = self.terminal()
        self.ask(t, "a\x1b\rb")
        self.assertEqual(self.asked(), "a\nb")

    def test_ctrl_c_clears_the_line_and_ctrl_d_leaves(self):
        t = self.terminal()
        t.type("nonsense")
        t.ends_with("> nonsense")
        t.type(INTERRUPT)
        t.ends_with("> nonsense^C\n>")
        self.ask(t, "sense")
        self.assertEqual(self.asked(), "sense")
        t.type(END_OF_INPUT)
        self.assertEqual(t.end(), 0)

    def test_an_empty_line_asks_nothing_and_leaves_nobody(self):
        t = self.terminal()
        self.ask(t, "\r  \rhello")
        self.assertEqual([q["messages"][-1]["content"] for q in self.server.questions], ["hello"])

    def test_sigterm_at_the_prompt_ends_it(self):
        t = self.terminal()
        t.signal(signal.SIGTERM)
        self.assertEqual(t.end(), 128 + signal.SIGTERM)


class Commands(Chat):
    def test_help_clear_system_and_quit(self):
        t = self.terminal("--system", "be kind")
        t.type("/help\r")
        t.shows("/system [TEXT]")
        for command, shown, want in (("", "", ["be kind", "q"]), ("/clear\r", "forgotten", ["be kind", "q"]),
                                     ("/system be brief\r", "system message set", ["be brief", "q"]), ("/system\r", "no system", ["q"])):
            t.type(command)
            t.shows(shown)
            before = len(self.server.questions)
            t.type("q\r")
            t.wait(lambda: len(self.server.questions) > before, "never asked")
            t.ends_with("fine\n\n>")
            self.assertEqual([m["content"] for m in self.server.questions[-1]["messages"]], want)
        t.type("/quit\r")
        self.assertEqual(t.end(), 0)

    def test_an_unknown_command_is_said_and_not_sent(self):
        t = self.terminal()
        t.type("/halp\r")
        t.shows("No command is called /halp")
        t.type("//usr is a path\r")
        t.ends_with("fine\n\n>")
        self.assertEqual([q["messages"] for q in self.server.questions], [[{"role": "user", "content": "/usr is a path"}]])


class Answers(Chat):
    def test_ctrl_c_ends_an_answer_and_the_conversation_goes_on(self):
        self.server.pieces = ["once upon", None]
        t = self.terminal()
        t.type("a tale\r")
        t.shows("once upon")
        t.type(INTERRUPT)
        t.ends_with("[stopped]\n\n>")
        self.assertTrue(self.server.broken.wait(10), "the server sees that nobody listens")
        self.server.pieces = ["fine"]
        t.type("and then?\r")
        t.ends_with("fine\n\n>")
        self.assertEqual([m["content"] for m in self.server.questions[-1]["messages"]], ["a tale", "once upon", "and then?"])

    def test_sigterm_in_an_answer_ends_it_at_once(self):
        self.server.pieces = ["once", None]
        t = self.terminal()
        t.type("a tale\r")
        t.shows("once")
        t.signal(signal.SIGTERM)
        self.assertEqual(t.end(), 128 + signal.SIGTERM)

    def test_a_server_that_drains_is_not_held_up(self):
        self.server.pieces = ["once", None]
        t = self.terminal()
        t.type("a tale\r")
        t.shows("once")
        self.server.phase = "draining"
        t.shows("[cut off: the server is shutting down]")
        self.assertTrue(self.server.broken.wait(10))

    def test_an_answer_that_was_cut_is_marked(self):
        self.server.finish = "length"
        t = self.terminal("--max-tokens", "4")
        t.type("q\r")
        t.shows("[cut off after 4 tokens: --max-tokens]")
        self.assertEqual(self.server.questions[-1]["max_completion_tokens"], 4)
        t = self.terminal()
        t.type("q\r")
        t.shows("[cut off: the context is full")
        said = chat("--url", self.server.address, "--message", "q")
        self.assertEqual((said.stdout.splitlines()[-1], said.stderr[:8]), ("fine", "[cut off"))

    def test_sampling_is_sensible_unless_it_is_set(self):
        def sent(*args):
            self.assertEqual(chat("--url", self.server.address, "--message", "q", *args).returncode, 0)
            return {k: self.server.questions[-1][k] for k in ("temperature", "top_k", "top_p", "min_p")}
        self.assertEqual(sent(), {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05})
        self.assertEqual(sent("--temperature", "0", "--top-k", "7", "--top-p", "1", "--min-p", "0"),
                         {"temperature": 0, "top_k": 7, "top_p": 1, "min_p": 0})


class Ends(Chat):
    def test_every_way_to_write_the_address(self):
        for url in (self.server.address, "http://" + self.server.address, f"http://{self.server.address}/v1", self.server.address + "/v1/"):
            done = chat("--url", url, "--message", "q")
            self.assertEqual((done.returncode, done.stdout), (0, "fine\n"), url)

    def test_a_dead_server_is_said_before_anything_is_typed(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))  # bound, not listening
            address = "127.0.0.1:%d" % s.getsockname()[1]
            t = Terminal("--url", address)
            self.addCleanup(t.close)
            self.assertEqual(t.end(), 6)
            said = t.screen.text().replace("\n", "")
            self.assertIn("Connection refused", said)
            self.assertIn("`baton serve MODEL` starts a", said)
            self.assertNotIn(">", t.screen.text())
            self.assertEqual(chat("--grpc", address, "--message", "q").returncode, 6)

    def test_a_silent_server_can_be_left(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen()
            t = Terminal("--url", "127.0.0.1:%d" % s.getsockname()[1])
            self.addCleanup(t.close)
            connection = s.accept()[0]
            connection.recv(1)
            self.addCleanup(connection.close)
            t.signal(signal.SIGINT)
            self.assertEqual(t.end(), 128 + signal.SIGINT)

    def test_a_model_that_is_not_served(self):
        done = chat("--url", self.server.address, "--model", "nope", "--message", "q")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("--model nope is not served there: demo is", done.stderr)

    def test_a_pipe_asks_line_by_line(self):
        done = chat("--url", self.server.address, stdin="one\n\ntwo\n/clear\nthree")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([q["messages"][-1]["content"] for q in self.server.questions], ["one", "two", "three"])
        self.assertEqual(done.stdout, "fine\nfine\n[the conversation is forgotten]\nfine\n")


if __name__ == "__main__":
    unittest.main(verbosity=2)
