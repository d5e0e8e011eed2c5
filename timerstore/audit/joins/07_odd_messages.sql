-- A row is a message of a timer that is looked at message by message.
SELECT messages.* FROM messages JOIN screened ON screened.who = messages.who
